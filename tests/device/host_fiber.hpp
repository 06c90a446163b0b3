#pragma once
// Work with its own stack, for threads of kernels that wait for each other.

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace accord::testing {

/// Work that may leave at any point and continues there when it is resumed, always on the thread that created the
/// fiber and with that thread's thread-local variables. The fiber must live until the work has ended. As on a thread,
/// an exception that escapes the work ends the process.
class HostFiber {
 public:
  explicit HostFiber(std::function<void()> work);
  HostFiber(const HostFiber&) = delete;
  HostFiber& operator=(const HostFiber&) = delete;

  /// Runs the work until it leaves or ends.
  void resume();
  /// Called by the work: makes resume() return.
  void leave();
  bool has_ended() const { return !fiber_; }

 private:
  const boost::context::stack_context stack_;
  const void* callers_bottom_ = nullptr;  ///< together with the bytes: the stack of the resumer, for AddressSanitizer
  std::size_t callers_bytes_ = 0;
  boost::context::fiber caller_, fiber_;
};

}  // namespace accord::testing
