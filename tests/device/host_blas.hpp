#pragma once
// Matrix products for devices over host memory: plain loops, in the order of their streams.

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <vector>

#include "base/clock.hpp"
#include "device/blas.hpp"
#include "device/host_runtime.hpp"

namespace accord::testing {

/// Rejects the same arguments as cuBLASLt: float8 with sizes that are not multiples of 16, dtypes that do not go
/// together, row strides shorter than a row, and scales if takes_scales() is false. Overwrites the whole workspace.
class HostBlas final : public device::Blas {
 public:
  explicit HostBlas(HostRuntime& runtime) : runtime_(runtime) {}
  /// Returns the instance of HostRuntime::instance().
  static HostBlas& instance();
  Status multiply(const device::Product& product, Device device, Stream stream) override;
  Result<int> candidates(const device::Product& product, Device device) override;
  Status multiply_by(int candidate, const device::Product& product, Device device, Stream stream) override;
  Status choose(int candidate, const device::Product& product, Device device) override;
  Result<bool> has(const device::Product& product, Device device) override;
  Result<bool> takes_scales(Device) override { return takes_scales_.load(); }
  std::size_t workspace_bytes() const override;
  std::string describe() const override { return "plain loops"; }
  /// `false`: as on a GPU that is not a Hopper.
  void set_takes_scales(bool takes) { takes_scales_ = takes; }
  /// The float8 products that have a kernel. The others are rejected although their shapes are valid, as where
  /// cuBLASLt's heuristics find no kernel.
  enum class Float8 : std::uint8_t { kAll, kWithoutScales, kNone };
  void set_takes_float8(Float8 takes) { takes_float8_ = takes; }
  /// Sets whether products of floats may include a bias and an activation.
  void set_takes_epilogues(bool takes) { takes_epilogues_ = takes; }
  /// Sets the number of kernels for each product, by the time that each adds to now(); one that adds none is the
  /// default. Forgets what was chosen. A negative time: that kernel fails with kUnsupported.
  void set_candidates(std::vector<std::chrono::microseconds> times);
  /// Returns the number of products that were put into streams.
  int products() const { return products_; }
  /// Returns the time that the kernels of all products have taken.
  Clock::time_point now() const { return Clock::time_point(elapsed_.load()); }
  /// Returns how many of them kernel `candidate` computes.
  int products_by(int candidate) const;

 private:
  HostRuntime& runtime_;
  std::atomic<int> products_ = 0;
  std::atomic<bool> takes_scales_ = true;
  std::atomic<bool> takes_epilogues_ = true;
  std::atomic<Float8> takes_float8_ = Float8::kAll;
  using Sizes = std::array<std::int64_t, 4>;  ///< rows_like(m), n, k, batch: of products with uses_choice
  mutable std::mutex mutex_;
  std::vector<std::chrono::microseconds> times_{std::chrono::microseconds(0)};
  std::map<Sizes, int> chosen_;
  std::map<int, int> products_by_;
  std::atomic<Clock::duration> elapsed_ = Clock::duration::zero();

  static Sizes sizes_of(const device::Product& product);
  Status check(const device::Product& product) const;
};

}  // namespace accord::testing
