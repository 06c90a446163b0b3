#pragma once
// Plans on devices: from a plan and a request to a launch.

#include "device/runtime.hpp"
#include "exec/device/device_layout.hpp"
#include "exec/device/plan_epilogue.hpp"
#include "exec/device/program.hpp"
#include "exec/lowered.hpp"

namespace accord::exec {

/// The most instances of a call that is not large.
inline constexpr int kUsualInstances = 16;
/// A call is large if its larger buffer has more bytes than this.
inline constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

/// Ready to run for one request, on any buffers.
struct DevicePlan {
  DeviceProgram program;
  int instances = 1;
};

/// The layout for a group of `members` with at most `instances` instances. `slot_bytes`: the total of all instances.
DeviceLayout device_layout(int members, int instances, std::size_t slot_bytes);

/// Returns the program of member `me`. Messages are cut so that all instances that the call may use have work, but each
/// has at least 1 KiB of each chunk. The layout's instances limit the thread blocks of a call: a plan of several lanes
/// has fewer instances, but at least one. REQUIRES: the programs of all ranks, unless all have one lane. Fails with
/// kUnsupported if the plan does more than devices support (premul_sum; buffers in windows, if those of the request are
/// not) or is too long for a kernel's arguments; otherwise like lower().
Result<DevicePlan> lower_for_device(const plan::Plan& plan, int me, const DeviceLayout& layout,
                                    const RequestRecord& request, Payload payload);

/// Fails with kUnsupported if the plan needs packets to order other memory: those of devices order nothing, since a
/// fence before each would wait for all earlier writes. REQUIRES: as lower_for_device().
Status check_for_device(const plan::Plan& plan);

/// The memory of one execution.
struct DeviceBuffers {
  const void* input = nullptr;
  void* output = nullptr;
  PlaceWord input_place = kNoPlace;  ///< in windows of which the memory lists the addresses, for plans that need them
  PlaceWord output_place = kNoPlace;
  std::uint64_t windows = 0;              ///< numbers of those that this rank still has, as bits
  std::byte* memory = nullptr;            ///< this rank's, in the layout, with the addresses of all ranks at its head
  const std::uint64_t* ending = nullptr;  ///< from allocate_host(): nonzero once waits must end
  std::uint64_t* fault = nullptr;         ///< likewise: set if two kernels of this rank run at the same time
};

/// Enqueues one execution in `stream`. Executions of one member run one after the other; all members make the same
/// executions in the same order. `epilogue`: follows the plan, in the same kernel if it has work for at most as many
/// blocks as the plan, or as the instances of a call that is not large; null if there is none.
Status launch(device::Runtime& runtime, const DevicePlan& plan, const DeviceLayout& layout, int me,
              const DeviceBuffers& buffers, Device device, Stream stream, const PlanEpilogue* epilogue = nullptr);

}  // namespace accord::exec
