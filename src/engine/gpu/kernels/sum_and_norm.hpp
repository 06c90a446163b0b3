#pragma once
// The kernels that add rows up over the ranks and compute their norms.

#include "engine/gpu/kernels/norm_rows.hpp"
#include "exec/device/run_plan.hpp"

namespace accord::engine {

/// For the dtypes of rows that have norms.
template <DType kDType>
struct SumAndNormRows : exec::RunPlanThen<kDType, NormRows<kDType, kMostKept>> {
  static constexpr const char* kName = kDType == DType::kFloat32   ? "run_plan_norm_float32"
                                       : kDType == DType::kFloat16 ? "run_plan_norm_float16"
                                                                   : "run_plan_norm_bfloat16";
};

}  // namespace accord::engine
