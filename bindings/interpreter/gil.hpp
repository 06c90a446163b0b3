#pragma once
// Releasing and acquiring the GIL, safe at the interpreter's end. Used instead of nanobind's scopes: while Python
// (before 3.14) ends, a thread that requests the GIL is unwound by force, which a destructor turns into
// std::terminate.

#include <Python.h>

namespace accord::python {

/// Releases the GIL while it lives. A thread that returns after the interpreter has ended stops forever, as in Python
/// 3.14. REQUIRES: the GIL.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// Holds the GIL while it lives; for C++ threads, which may hold it already. At the interpreter's end a thread stops
/// here as well: query PythonCallScope first if the thread has anything else to do.
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
