#pragma once
// The kernels for norms of rows. A thread keeps its part of a row in registers, so memory is read once and written
// once.

#include <cmath>
#include <cstdint>

#include "accord/buffer.hpp"
#include "engine/gpu/kernels/operands.hpp"
#include "engine/gpu/kernels/units.hpp"

namespace accord::engine {

/// y = norm(s) * weight + bias for each row s = x + addend + residual. The sums are rounded to the dtype, as in
/// PyTorch. s is also written to `sum`. A null pointer means that an operand is absent. y and `sum` may be the memory
/// of x or residual. A row with more units than the threads keep in registers is stored in `sum`, or else in y,
/// between the passes over it.
struct NormCalculation {
  DType dtype = DType::kFloat32;
  bool subtract_mean = false;  ///< true: layer_norm, which first subtracts the mean; false: rms_norm
  std::int64_t rows = 0, width = 0;
  RowOperand x, residual, y, sum;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* addend = nullptr;
  float eps = 0.0F;
};

/// One row of kDType, computed by the threads of `Team` in pieces of `Unit`. `kKept`: how many of these a thread keeps
/// in registers.
template <DType kDType, int kKept, typename Unit, typename Team>
class NormOfRow {
 public:
  ACCORD_ON_DEVICE NormOfRow(const NormCalculation& of, const Team& team, std::int64_t row)
      : of_(of),
        team_(team),
        units_(static_cast<int>(of.width / kCount)),
        step_(team.size() * kKept),
        stays_in_registers_(units_ <= step_),
        x_(units_at<Unit>(of.x.data, row * of.x.stride)),
        residual_(of.residual.data == nullptr ? nullptr : units_at<Unit>(of.residual.data, row * of.residual.stride)),
        y_(units_at<Unit>(of.y.data, row * of.y.stride)),
        sum_(of.sum.data == nullptr ? nullptr : units_at<Unit>(of.sum.data, row * of.sum.stride)),
        between_(sum_ == nullptr ? y_ : sum_) {}

  ACCORD_ON_DEVICE void compute() {
    float total = 0.0F;
    for (int first = team_.index(); first < units_; first += step_) total += take(first);
    Stored weights[kKept] = {};
    load_weights(weights, team_.index());  // on their way while the threads meet
    const float width = static_cast<float>(of_.width);
    total = team_.sum(total) / width;
    const float mean = of_.subtract_mean ? total : 0.0F;
    const float scale = 1.0F / sqrtf((of_.subtract_mean ? team_.sum(squares(mean)) / width : total) + of_.eps);
    for (int first = team_.index(); first < units_; first += step_) {
      if (!stays_in_registers_) {
        read_back(first);
        load_weights(weights, first);
      }
      write(first, weights, mean, scale);
    }
  }

 private:
  using Stored = typename Unit::Stored;
  static constexpr int kCount = Unit::kCount;
  using Elements = float[kCount];

  /// Calls body(slot, unit) for the units of this thread from `first` on.
  template <typename Body>
  ACCORD_ON_DEVICE void for_kept(int first, const Body& body) {
    ACCORD_UNROLLED
    for (int slot = 0; slot < kKept; ++slot) {
      const int unit = first + slot * team_.size();
      if (unit < units_) body(slot, unit);
    }
  }

  /// Adds up the operands of the row's units from `first` on. Returns the sum of their elements, or of the squares.
  ACCORD_ON_DEVICE float take(int first) {
    Stored residuals[kKept] = {};
    for_kept(first, [&](int slot, int unit) { kept_[slot] = x_[unit]; });
    if (residual_ != nullptr) for_kept(first, [&](int slot, int unit) { residuals[slot] = residual_[unit]; });
    float total = 0.0F;
    for_kept(first, [&](int slot, int unit) {
      Elements s;
      Unit::load(kept_[slot], s);
      if (of_.addend != nullptr) add(s, units_at<Unit>(of_.addend, 0)[unit]);
      if (residual_ != nullptr) add(s, residuals[slot]);
      kept_[slot] = Unit::stored(s);
      if (sum_ != nullptr || !stays_in_registers_) between_[unit] = kept_[slot];
      ACCORD_UNROLLED
      for (int i = 0; i < kCount; ++i) total = of_.subtract_mean ? total + s[i] : multiply_add(s[i], s[i], total);
    });
    return total;
  }

  ACCORD_ON_DEVICE static void add(Elements& s, Stored addends) {
    Elements more;
    Unit::load(addends, more);
    ACCORD_UNROLLED
    for (int i = 0; i < kCount; ++i) s[i] += more[i];
    round_to_unit<Unit>(s);
  }

  ACCORD_ON_DEVICE void read_back(int first) {
    for_kept(first, [&](int slot, int unit) { kept_[slot] = between_[unit]; });
  }

  ACCORD_ON_DEVICE void load_weights(Stored (&weights)[kKept], int first) {
    if (of_.weight != nullptr)
      for_kept(first, [&](int slot, int unit) { weights[slot] = units_at<Unit>(of_.weight, 0)[unit]; });
  }

  /// Returns the sum of the squares of this thread's elements, less the mean.
  ACCORD_ON_DEVICE float squares(float mean) {
    float total = 0.0F;
    for (int first = team_.index(); first < units_; first += step_) {
      if (!stays_in_registers_) read_back(first);
      for_kept(first, [&](int slot, int) {
        Elements s;
        Unit::load(kept_[slot], s);
        ACCORD_UNROLLED
        for (int i = 0; i < kCount; ++i) total = multiply_add(s[i] - mean, s[i] - mean, total);
      });
    }
    return total;
  }

  ACCORD_ON_DEVICE void write(int first, const Stored (&weights)[kKept], float mean, float scale) {
    for_kept(first, [&](int slot, int unit) {
      Elements s, factors;
      Unit::load(kept_[slot], s);
      ACCORD_UNROLLED
      for (int i = 0; i < kCount; ++i) s[i] = (s[i] - mean) * scale;
      if (of_.weight != nullptr) {
        Unit::load(weights[slot], factors);
        ACCORD_UNROLLED
        for (int i = 0; i < kCount; ++i) s[i] *= factors[i];
      }
      if (of_.bias != nullptr) {
        Unit::load(units_at<Unit>(of_.bias, 0)[unit], factors);
        ACCORD_UNROLLED
        for (int i = 0; i < kCount; ++i) s[i] += factors[i];
      }
      y_[unit] = Unit::stored(s);
    });
  }

  const NormCalculation& of_;
  const Team& team_;
  const int units_, step_;
  const bool stays_in_registers_;
  const Stored* const x_;
  const Stored* const residual_;
  Stored *const y_, *const sum_, *const between_;
  Stored kept_[kKept] = {};
};

/// Whether the rows of a norm consist of Words.
template <DType kDType>
ACCORD_ON_DEVICE inline bool has_words(const NormCalculation& of) {
  WordCheck<kDType> check;
  check.elements(of.width).elements(of.x.stride).elements(of.residual.stride);
  check.elements(of.y.stride).elements(of.sum.stride);
  check.address(of.x.data).address(of.residual.data).address(of.y.data).address(of.sum.data);
  check.address(of.weight).address(of.bias).address(of.addend);
  return check.holds();
}

template <DType kDType, int kKept, typename Team>
ACCORD_ON_DEVICE inline void compute_norm(const NormCalculation& of, const Team& team, std::int64_t row,
                                          bool in_words) {
  if (in_words) {
    NormOfRow<kDType, kKept, WordUnit<kDType>, Team>(of, team, row).compute();
  } else {
    NormOfRow<kDType, kKept, ElementUnit<kDType>, Team>(of, team, row).compute();
  }
}

/// Each block computes a row. With one unit in the registers of a thread, twice as many threads run on a multiprocessor
/// as with kMostKept.
inline constexpr int kMostKept = 4;
template <DType kDType, int kKept>
struct NormRows : NormCalculation {
  static_assert(kKept == 1 || kKept == kMostKept);
  static constexpr const char* kNames[6] = {"norm_rows_float32",      "norm_rows_float16",
                                            "norm_rows_bfloat16",     "norm_long_rows_float32",
                                            "norm_long_rows_float16", "norm_long_rows_bfloat16"};
  static constexpr const char* kName = kNames[(kKept == 1 ? 0 : 3) + (kDType == DType::kFloat32   ? 0
                                                                      : kDType == DType::kFloat16 ? 1
                                                                                                  : 2)];
  static constexpr int kThreads = 512;
  static constexpr bool kStartsEarly = true;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const bool in_words = has_words<kDType>(*this);
    const BlockTeam<Block> team(block);
    for (std::int64_t row = block.block(); row < rows; row += block.blocks())
      compute_norm<kDType, kKept>(*this, team, row, in_words);
  }
};

/// For short rows, such as those of heads: each warp computes a row.
template <DType kDType>
struct NormShortRows : NormCalculation {
  static constexpr const char* kName = kDType == DType::kFloat32   ? "norm_short_rows_float32"
                                       : kDType == DType::kFloat16 ? "norm_short_rows_float16"
                                                                   : "norm_short_rows_bfloat16";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;
  static constexpr int kKept = 1;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const bool in_words = has_words<kDType>(*this);
    const WarpTeam<Block> team(block);
    const auto warps = static_cast<std::int64_t>(block.stride()) / block.lanes();
    for (std::int64_t row = static_cast<std::int64_t>(block.first()) / block.lanes(); row < rows; row += warps)
      compute_norm<kDType, kKept>(*this, team, row, in_words);
  }
};

}  // namespace accord::engine
