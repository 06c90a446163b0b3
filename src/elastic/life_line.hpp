#pragma once
// By which processes on any host notice that another one has ended.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "comm/internal.hpp"
#include "transport/tcp/call.hpp"

namespace accord::elastic {

/// Answers those that watch this process, in a thread of its own. The connections end with the process.
class LifeLine {
 public:
  static Result<std::unique_ptr<LifeLine>> open();
  ~LifeLine();
  LifeLine(const LifeLine&) = delete;
  LifeLine& operator=(const LifeLine&) = delete;

  /// The text by which others watch this process, that of a handle.
  std::string address() const { return comm::to_text(listener_.handle); }

 private:
  explicit LifeLine(comm::HandleListener listener) : listener_(std::move(listener)) {}
  void answer();
  /// Returns false if the connection has ended or is not of a watcher.
  bool keep(transport::tcp::IncomingCall& call) const;

  comm::HandleListener listener_;
  UniqueFd stop_;  ///< an eventfd
  std::vector<transport::tcp::IncomingCall> calls_;
  std::thread thread_;
};

enum class Life : std::uint8_t {
  kUnknown,  ///< it has not answered yet
  kAlive,
  kGone,  ///< the process has ended
};

/// One watched process. Never blocks.
class LifeWatch {
 public:
  explicit LifeWatch(const comm::Handle& address);
  /// Once kGone, always kGone.
  Life look();

 private:
  transport::tcp::OutgoingCall call_;
  UnsharedFd answered_;
  bool is_gone_ = false;
};

}  // namespace accord::elastic
