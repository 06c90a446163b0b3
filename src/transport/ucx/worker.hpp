#pragma once
// This process's single UCX worker: routes to other processes, messages to the streams that use them, and their
// progress.

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "transport/ucx/ucx_library.hpp"

namespace accord::transport::ucx {

/// The connection to one other process. Shared by all groups that have ranks there, and kept while it works, because
/// closing it would end the other side's connection back. Destroyed under Worker::mutex().
struct Route {
  explicit Route(const UcxLibrary& library) : ucx(library) {}
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;
  ~Route();

  const UcxLibrary& ucx;
  ucp_ep_h ep = nullptr;
  bool failed = false;  ///< guarded by Worker::mutex()
};

class Worker;

/// Destination of the messages of one link.
class Receiver {
 public:
  virtual ~Receiver() = default;
  /// Called on the thread that makes progress, which holds the worker's mutex.
  virtual void receive(std::uint64_t sequence, std::span<const std::byte> message) = 0;
};

/// Bytes of one message: the most that UCX sends over TCP in one piece without a copy of its own, and that the other
/// side can read in place.
inline constexpr std::size_t kMessageBytes = 56 << 10;

struct MessageHeader {
  std::uint64_t receiver = 0;  ///< in the receiving side's numbering
  std::uint64_t sequence = 0;  ///< counted from 1 on each link
};

/// A buffer in flight, or free. When UCX no longer needs it, the sender's `in_flight` is decremented.
struct Message {
  MessageHeader header;
  std::size_t used = 0;
  Worker* worker = nullptr;
  std::shared_ptr<Route> route;
  std::shared_ptr<std::size_t> in_flight;
  alignas(64) std::array<std::byte, kMessageBytes> bytes;
};

/// Thread-safe unless stated otherwise. Created on first use and never destroyed.
class Worker {
 public:
  /// Fails with kUnsupported if UCX is missing or cannot be used here, or in a forked child of a process that uses
  /// it.
  static Result<Worker*> instance();
  /// Whether instance() would succeed, without creating the worker: the process may still fork.
  static Status viable();

  /// True in a process forked from the worker's own.
  bool is_inherited() const { return owner_ != ::getpid(); }
  const std::string& address() const { return address_; }
  /// Guards the worker, all its streams, and the effects of receive().
  std::mutex& mutex() { return mutex_; }

  /// Makes one step of progress. Returns true if something happened, false also if another thread is making progress.
  bool progress();

  // For all of these, REQUIRES: mutex() is held.
  Result<std::shared_ptr<Route>> route_to(const std::string& address);
  std::uint64_t attach(Receiver* receiver);
  void detach(std::uint64_t id) { receivers_.erase(id); }
  std::unique_ptr<Message> take_message();
  void send(std::unique_ptr<Message> message);

 private:
  static Result<std::unique_ptr<Worker>> make();
  Worker(const UcxLibrary& ucx, ucp_worker_h worker, std::string address, UniqueFd events);
  Status listen();
  void loop();
  bool fall_asleep();
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* how);
  static void on_sent(void* request, ucs_status_t status, void* message);
  void free_message(std::unique_ptr<Message> message);

  const UcxLibrary& ucx_;
  const ucp_worker_h worker_;
  const std::string address_;
  const pid_t owner_ = ::getpid();
  const UniqueFd events_;  ///< an epoll with UCX's descriptor
  std::atomic<std::uint64_t> polls_ = 0;
  std::mutex mutex_;
  bool ended_ = false;  ///< the process is exiting: UCX must not be entered any more
  std::map<std::string, std::shared_ptr<Route>> routes_;
  std::map<std::uint64_t, Receiver*> receivers_;
  std::uint64_t next_receiver_ = 1;
  std::vector<std::unique_ptr<Message>> free_;
};

}  // namespace accord::transport::ucx
