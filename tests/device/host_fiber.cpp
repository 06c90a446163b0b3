// Contexts are Boost's: a switch stores and loads a few registers. Each stack has a guard page below it. A stack
// whose fiber has ended is kept for the next fiber, since each block creates as many fibers as it has threads.
// AddressSanitizer is notified before and after each switch, and when a stack is reused, that it holds nothing.
#include "device/host_fiber.hpp"

#include <sanitizer/asan_interface.h>

#include <boost/context/protected_fixedsize_stack.hpp>
#include <mutex>
#include <utility>
#include <vector>

#include "sanitized.hpp"

namespace accord::testing {
namespace {

using boost::context::fiber;
using boost::context::stack_context;

constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // pages that are never touched cost nothing

const void* bottom_of(const stack_context& stack) { return static_cast<std::byte*>(stack.sp) - stack.size; }

class Stacks {
 public:
  /// Outlives every thread.
  static Stacks& instance() {
    static Stacks& stacks = *new Stacks;
    return stacks;
  }
  stack_context acquire() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return boost::context::protected_fixedsize_stack(kStackBytes).allocate();
    const stack_context stack = free_.back();
    free_.pop_back();
    ASAN_UNPOISON_MEMORY_REGION(bottom_of(stack), stack.size);
    return stack;
  }
  void release(const stack_context& stack) {
    const std::lock_guard lock(mutex_);
    free_.push_back(stack);
  }

 private:
  std::mutex mutex_;
  std::vector<stack_context> free_;
};

/// The allocator through which Boost's fibers free their stacks.
struct ReleaseStack {
  void deallocate(const stack_context& stack) const { Stacks::instance().release(stack); }
};

/// `fake` receives AddressSanitizer's copy of the stack that is left; null if that stack is left for good.
void begin_switch(void** fake, const void* bottom, std::size_t bytes) {
  if constexpr (kAddressSanitizer) __sanitizer_start_switch_fiber(fake, bottom, bytes);
}
/// `bottom` and `bytes` receive the bounds of the stack that was left.
void end_switch(void* fake, const void** bottom, std::size_t* bytes) {
  if constexpr (kAddressSanitizer) __sanitizer_finish_switch_fiber(fake, bottom, bytes);
}

}  // namespace

HostFiber::HostFiber(std::function<void()> work)
    : stack_(Stacks::instance().acquire()),
      fiber_(std::allocator_arg, boost::context::preallocated(stack_.sp, stack_.size, stack_), ReleaseStack{},
             [this, work = std::move(work)](fiber&& caller) {
               end_switch(nullptr, &callers_bottom_, &callers_bytes_);
               caller_ = std::move(caller);
               work();
               begin_switch(nullptr, callers_bottom_, callers_bytes_);
               return std::move(caller_);
             }) {}

void HostFiber::resume() {
  void* fake = nullptr;
  begin_switch(&fake, bottom_of(stack_), stack_.size);
  fiber_ = std::move(fiber_).resume();
  end_switch(fake, nullptr, nullptr);
}

void HostFiber::leave() {
  void* fake = nullptr;
  begin_switch(&fake, callers_bottom_, callers_bytes_);
  caller_ = std::move(caller_).resume();
  end_switch(fake, &callers_bottom_, &callers_bytes_);
}

}  // namespace accord::testing
