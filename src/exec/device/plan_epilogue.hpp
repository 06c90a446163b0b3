#pragma once
// A kernel behind a plan.

#include <cstdint>

#include "device/kernel.hpp"

namespace accord::exec {

struct DeviceExecution;
struct DeviceProgram;

/// One execution of a plan, as its kernel gets it.
struct PlanLaunch {
  device::Runtime& runtime;
  const DeviceExecution& run;
  const DeviceProgram& program;
  device::Grid grid;
  Device device;
  Stream stream;
};

/// The work of a higher layer on the output of a plan, for example a norm of its rows. It is local to the rank, so the
/// peers are not concerned with it. Epilogues that have work for few blocks run in the plan's kernel, others in a
/// kernel of their own behind it.
class PlanEpilogue {
 public:
  virtual ~PlanEpilogue() = default;
  /// The number of blocks that have work.
  virtual std::int64_t blocks() const = 0;
  /// Launches a RunPlanThen (run_plan.hpp) of `plan` and this epilogue, on the grid of `plan`, which has at least
  /// blocks() blocks.
  virtual Status launch_with(const PlanLaunch& plan) const = 0;
  /// Launches the epilogue by itself.
  virtual Status launch(device::Runtime& runtime, Device device, Stream stream) const = 0;
};

}  // namespace accord::exec
