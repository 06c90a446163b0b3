#pragma once
// This process's one UCX worker: routes to other processes, messages to the streams that use them, and their progress.

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

/// The way to one other process; shared by all groups that have ranks there, and kept while it works, for closing it would
/// end the other side's way back. Dies under Worker::mutex().
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

/// Where messages of one link arrive.
class Receiver {
 public:
  virtual ~Receiver() = default;
  /// On the thread that makes progress, which holds the worker's mutex.
  virtual void receive(std::uint64_t sequence, std::span<const std::byte> message) = 0;
};

/// Bytes of one message: the most that UCX sends over TCP in one piece without a copy of its own, and that the other side
/// can read where it arrived.
inline constexpr std::size_t kMessageBytes = 56 << 10;

struct MessageHeader {
  std::uint64_t receiver = 0;  ///< as the other side numbers them
  std::uint64_t sequence = 0;  ///< counted from 1 on each link
};

/// A buffer on its way, or free. `in_flight` of its sender counts it down when UCX needs it no more.
struct Message {
  MessageHeader header;
  std::size_t used = 0;
  Worker* worker = nullptr;
  std::shared_ptr<Route> route;
  std::shared_ptr<std::size_t> in_flight;
  alignas(64) std::array<std::byte, kMessageBytes> bytes;
};

/// Thread-safe where nothing else is said. Made on first use and never destroyed.
class Worker {
 public:
  /// kUnsupported if UCX is missing or cannot be used here, or in a child of a process that uses it.
  static Result<Worker*> instance();
  /// Whether instance() would give one, without making it: processes may still be forked off.
  static Status viable();

  /// True in a process that was forked off its own.
  bool is_inherited() const { return owner_ != ::getpid(); }
  const std::string& address() const { return address_; }
  /// Guards the worker, all its streams, and what receive() does.
  std::mutex& mutex() { return mutex_; }

  /// One step: true if something happened. False too if another thread is at it.
  bool progress();

  // REQUIRES, for all of these: mutex() is held.
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
  bool ended_ = false;  ///< the process exits: UCX must not be entered any more
  std::map<std::string, std::shared_ptr<Route>> routes_;
  std::map<std::uint64_t, Receiver*> receivers_;
  std::uint64_t next_receiver_ = 1;
  std::vector<std::unique_ptr<Message>> free_;
};

}  // namespace accord::transport::ucx
