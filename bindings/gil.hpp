#pragma once
// Leaving and taking the GIL, safe at the interpreter's end. Used instead of nanobind's scopes: while Python (before 3.14)
// ends, a thread that asks for the GIL is unwound by force, which a destructor turns into std::terminate.

#include <Python.h>

namespace accord::python {

/// Leaves the GIL while it lives. A thread that comes back after the interpreter ended stops for ever, as in Python 3.14.
/// REQUIRES: the GIL.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// Has the GIL while it lives; for threads of C++, which may have it already. The same holds at the interpreter's end: ask
/// PythonCallScope first where the thread has more to do than to stop.
class WithGil {
 public:
  WithGil();
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace accord::python
