#pragma once
// Work with a stack of its own, for threads of kernels that wait for each other.

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace accord::testing {

/// Work that leaves where it likes, and goes on from there when it is resumed: always on the thread that made the fiber, whose thread-local
/// variables it has. The fiber lives until the work has ended. As on a thread, an exception that leaves the work ends the process.
class HostFiber {
 public:
  explicit HostFiber(std::function<void()> work);
  HostFiber(const HostFiber&) = delete;
  HostFiber& operator=(const HostFiber&) = delete;

  /// Runs the work until it leaves or ends.
  void resume();
  /// By the work: resume() returns.
  void leave();
  bool has_ended() const { return !fiber_; }

 private:
  const boost::context::stack_context stack_;
  const void* callers_bottom_ = nullptr;  ///< and bytes: the stack of who resumed it, for AddressSanitizer
  std::size_t callers_bytes_ = 0;
  boost::context::fiber caller_, fiber_;
};

}  // namespace accord::testing
