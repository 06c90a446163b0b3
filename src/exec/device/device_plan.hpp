#pragma once
// Plans on devices: from a plan and a request to a launch.

#include "device/norm_rows.hpp"
#include "device/runtime.hpp"
#include "exec/device/device_layout.hpp"
#include "exec/device/program.hpp"
#include "exec/lowered.hpp"

namespace accord::exec {

/// Ready to run for one request, on any buffers.
struct DevicePlan {
  DeviceProgram program;
  int instances = 1;
};

/// For a group of `members` with at most that many instances. `slot_bytes`: of all instances together.
DeviceLayout device_layout(int members, int instances, std::size_t slot_bytes);

/// The program of member `me`. Long messages are cut so that all instances have to do, short ones so that each has a few KiB. kUnsupported: it does
/// more than devices do (buffers in windows, premul_sum) or is too long for a kernel's arguments; else as lower().
Result<DevicePlan> lower_for_device(const plan::Plan& plan, int me, const DeviceLayout& layout,
                                    const RequestRecord& request, Payload payload);

/// Where one execution finds things.
struct DeviceBuffers {
  const void* input = nullptr;
  void* output = nullptr;
  std::byte* memory = nullptr;            ///< this rank's, by the layout, with the addresses of all at its head
  const std::uint64_t* ending = nullptr;  ///< of allocate_host(): not zero once waits have to end
};

/// Puts one execution into `stream`. Executions of one member follow each other; all members make the same ones in the same order. `norm`: of rows of the
/// output, comes after it, in the same kernel if its rows are no more than the plan's blocks, or the layout's
/// instances. It is this member's own affair.
Status launch(device::Runtime& runtime, const DevicePlan& plan, const DeviceLayout& layout, int me,
              const DeviceBuffers& buffers, Device device, Stream stream, const device::NormRows* norm = nullptr);

}  // namespace accord::exec
