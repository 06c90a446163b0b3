#pragma once
// The products of the devices over host memory: plain loops, in the order of their streams.

#include <atomic>

#include "device/blas.hpp"
#include "device/host_runtime.hpp"

namespace accord::testing {

/// Refuses what cuBLASLt would: float8 but of sizes that are multiples of 16, dtypes that do not go together, row strides below a row, scales where
/// it has said that it takes none. Overwrites the whole workspace.
class HostBlas final : public device::Blas {
 public:
  explicit HostBlas(HostRuntime& runtime) : runtime_(runtime) {}
  /// That of HostRuntime::instance().
  static HostBlas& instance();
  Status multiply(const device::Product& product, Device device, Stream stream) override;
  Result<bool> has(const device::Product& product, Device device) override;
  Result<bool> takes_scales(Device) override { return takes_scales_.load(); }
  std::size_t workspace_bytes() const override;
  std::string describe() const override { return "plain loops"; }
  /// As on a GPU that is no Hopper.
  void take_scales(bool takes) { takes_scales_ = takes; }
  /// For which float8 there is a kernel, in shapes that it refuses besides: as where cuBLASLt's heuristics find none.
  enum class Float8 : std::uint8_t { kAll, kWithoutScales, kNone };
  void take_float8(Float8 takes) { takes_float8_ = takes; }
  /// Whether bias and activation may be in a product of floats.
  void take_epilogues(bool takes) { takes_epilogues_ = takes; }
  /// How many products were put into streams.
  int products() const { return products_; }

 private:
  HostRuntime& runtime_;
  std::atomic<int> products_ = 0;
  std::atomic<bool> takes_scales_ = true;
  std::atomic<bool> takes_epilogues_ = true;
  std::atomic<Float8> takes_float8_ = Float8::kAll;

  Status check(const device::Product& product) const;
};

}  // namespace accord::testing
