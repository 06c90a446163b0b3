#pragma once
// accord.DeviceWindow, and NCCL communicators that are lent.

#include <nanobind/nanobind.h>

#include "accord/device_window.hpp"
#include "communicator.hpp"
#include "process.hpp"

namespace accord::python {

namespace nb = nanobind;

/// What a Python DeviceWindow holds.
struct DeviceWindowHandle {
  nb::object memory;  ///< the program's own array, if it is in that; goes last
  ProcessBound<DeviceWindow> window;

  DeviceWindow& use() { return window.use("this window"); }
};

/// Communicator.device_window: `memory` is a number of bytes, or an array on a GPU.
DeviceWindowHandle device_window(CommunicatorHandle& self, nb::handle memory, int device, nb::handle timeout);
/// Communicator.lend_nccl: an ncclComm_t as an integer.
void lend_nccl(CommunicatorHandle& self, nb::handle pointer);

void bind_device_window(nb::module_& module);

}  // namespace accord::python
