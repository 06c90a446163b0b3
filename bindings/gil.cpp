// Python ends a thread with pthread_exit, whose unwinding passes through C++ frames as an exception of its own kind.
// It is caught where it enters them and never propagated: the thread sleeps until the process ends and keeps
// everything in its frames.
#include "gil.hpp"

#include <unistd.h>

namespace accord::python {
namespace {

template <typename Take>
void take(Take take_gil) {
  try {
    take_gil();
  } catch (...) {
    for (;;) pause();
  }
}

}  // namespace

WithoutGil::~WithoutGil() {
  take([this] { PyEval_RestoreThread(state_); });
}

WithGil::WithGil() {
  take([this] { state_ = PyGILState_Ensure(); });
}

}  // namespace accord::python
