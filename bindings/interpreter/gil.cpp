// Python ends a thread with pthread_exit, whose unwinding passes through C++ frames as an exception of its own kind.
// It is caught where it enters them and never propagated: the thread sleeps until the process ends and keeps
// everything in its frames.
#include "bindings/interpreter/gil.hpp"

#include <unistd.h>

namespace accord::python {
namespace {

template <typename Acquire>
void acquire(Acquire acquire_gil) {
  try {
    acquire_gil();
  } catch (...) {
    for (;;) pause();
  }
}

}  // namespace

WithoutGil::~WithoutGil() {
  acquire([this] { PyEval_RestoreThread(state_); });
}

WithGil::WithGil() {
  acquire([this] { state_ = PyGILState_Ensure(); });
}

}  // namespace accord::python
