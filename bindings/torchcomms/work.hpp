#pragma once
// Python objects behind torchcomms' interface, and calls in progress.

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <comms/torchcomms/TorchCommTypes.hpp>
#include <comms/torchcomms/TorchWork.hpp>
#include <functional>
#include <utility>

namespace accord::torchcomms {

namespace py = pybind11;
using std::chrono::milliseconds;

/// A Python object that may be released without the GIL, and after the interpreter has ended.
class Held {
 public:
  explicit Held(py::object object) : object_(std::move(object)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (Py_IsInitialized() == 0) {
      (void)object_.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }
  const py::object& operator*() const { return object_; }
  const py::object* operator->() const { return &object_; }

 private:
  py::object object_;
};

/// A call in progress. Its status changes on the thread that waits, because hooks are registered without a lock.
class AsyncWork final : public torch::comms::TorchWork {
 public:
  /// `at_failure` is called with the GIL when a wait fails.
  AsyncWork(py::object work, milliseconds timeout, std::function<void()> at_failure)
      : work_(std::move(work)), timeout_(timeout), at_failure_(std::move(at_failure)) {
    setStatus(WorkStatus::INPROGRESS);
  }

  void wait() override {
    runWaitPreHooks();
    try {
      const py::gil_scoped_acquire gil;
      work_->attr("wait")();
    } catch (py::error_already_set& error) {
      const py::gil_scoped_acquire gil;
      setStatus(error.matches(PyExc_TimeoutError) ? WorkStatus::TIMEDOUT : WorkStatus::ERROR);
      at_failure_();
      throw;
    }
    if (!isCompleted()) setStatus(WorkStatus::COMPLETED);
    runWaitPostHooks();
  }
  void waitBlocking() override { wait(); }
  milliseconds getTimeout() const override { return timeout_; }

 private:
  const Held work_;
  const milliseconds timeout_;
  const std::function<void()> at_failure_;
};

/// Returns the timeout of a call's options, or None.
template <typename Options>
py::object timeout_of(const Options& options) {
  return options.timeout == torch::comms::kNoTimeout ? py::none() : py::cast(options.timeout);
}

}  // namespace accord::torchcomms
