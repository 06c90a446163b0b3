#pragma once
// The kernels that run plans.

#include "device/kernel.hpp"
#include "exec/device/plan_thread.hpp"

namespace accord::exec {

/// By DType.
inline constexpr const char* kRunPlanNames[kDTypeCount] = {
    "run_plan_int8",       "run_plan_int16",   "run_plan_int32",         "run_plan_int64",       "run_plan_uint8",
    "run_plan_uint16",     "run_plan_uint32",  "run_plan_uint64",        "run_plan_float16",     "run_plan_bfloat16",
    "run_plan_float32",    "run_plan_float64", "run_plan_float8_e4m3fn", "run_plan_float8_e5m2", "run_plan_complex64",
    "run_plan_complex128", "run_plan_bool"};

/// Runs a plan for one dtype.
template <DType kDType>
struct RunPlan {
  static constexpr const char* kName = kRunPlanNames[static_cast<int>(kDType)];
  static constexpr int kThreads = 512;
  static constexpr int kMinBlocks = 1;  // all registers that it can use: its speed depends on the loads under way
  DeviceExecution run;
  DeviceProgram program;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    PlanThread<ElementOf<kDType>, Block>(block, run, program).run();
  }
};

/// Runs a plan, then the kernel `then` on its output, once all blocks have reached that point. Blocks beyond the plan's
/// only run `then`, which gets the plan's number of threads and no shared memory. The layer that defines `Then` derives
/// a kernel with a name (plan_epilogue.hpp).
template <DType kDType, typename Then>
struct RunPlanThen {
  static constexpr int kThreads = RunPlan<kDType>::kThreads, kMinBlocks = RunPlan<kDType>::kMinBlocks;
  static_assert(Then::kThreads == kThreads);
  DeviceExecution run;
  DeviceProgram program;
  Then then;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    bool ends = false;
    if (block.block() < run.instances * program.lanes)
      ends = !PlanThread<ElementOf<kDType>, Block>(block, run, program).run();
    if (sync_blocks(block, run, ends)) then(block);
  }
};

}  // namespace accord::exec
