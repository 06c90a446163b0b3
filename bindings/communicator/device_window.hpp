#pragma once
// accord.DeviceWindow, and the use of a program's own NCCL communicators.

#include <nanobind/nanobind.h>

#include "accord/device_window.hpp"
#include "bindings/communicator/communicator.hpp"
#include "bindings/interpreter/process.hpp"

namespace accord::python {

namespace nb = nanobind;

/// The contents of a Python DeviceWindow.
struct DeviceWindowHandle {
  nb::object memory;  ///< the program's own array, if the window uses one; destroyed last
  ProcessBound<DeviceWindow> window;

  DeviceWindow& use() { return window.use("this window"); }
};

/// Implements Communicator.device_window: `memory` is a number of bytes, or an array on a GPU.
DeviceWindowHandle device_window(CommunicatorHandle& self, nb::handle memory, int device, nb::handle timeout);
/// Implements Communicator.lend_nccl: `pointer` is an ncclComm_t as an integer.
void lend_nccl(CommunicatorHandle& self, nb::handle pointer);

void bind_device_window(nb::module_& module);

}  // namespace accord::python
