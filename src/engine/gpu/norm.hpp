#pragma once
// Launches norms of rows, by themselves or behind the collective that produces the rows.

#include "engine/gpu/kernels/norm_rows.hpp"
#include "exec/device/plan_epilogue.hpp"

namespace accord::engine::gpu {

/// Launches one block per row, or one warp if rows are short, up to a number that keeps every GPU busy.
Status launch_norm(device::Runtime& runtime, const NormCalculation& norm, Device device, Stream stream);

/// A norm behind a collective. Its rows are those of the collective's output, and it has a block for each.
class NormEpilogue final : public exec::PlanEpilogue {
 public:
  explicit NormEpilogue(const NormCalculation& norm) : norm_(norm) {}
  std::int64_t blocks() const override { return norm_.rows; }
  Status launch_with(const exec::PlanLaunch& plan) const override;
  Status launch(device::Runtime& runtime, Device device, Stream stream) const override {
    return launch_norm(runtime, norm_, device, stream);
  }

 private:
  const NormCalculation norm_;
};

}  // namespace accord::engine::gpu
