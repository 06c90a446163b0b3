#pragma once
// Products, on tensor cores, of more rows than a FewRowsProduct takes, but few enough that a float8 weight is read at
// the speed of memory. Each block computes some outputs of all rows. Its warps divide the inputs among them. Each
// warp keeps what it has read of the weight in registers, widened to 16 bits, which hold all float8 values. Then the
// sums of the warps are added up, always in the same order.
//
// The order of the inputs within a product is free, so that each lane takes the 16 neighbouring inputs that it reads
// at once: of 64 inputs, those from lane % 4 * 16 on, for the weight as for x, four for each of four products.

#include "engine/gpu/kernels/product_kernel.hpp"

namespace accord::engine {

/// For at most 16 * kHigh rows: 16, 32 or 64. x has 16-bit floats. The weight, and the gate if there is one, are
/// float8 with k a multiple of 16, and begin at multiples of 16 bytes.
template <DType kDType, int kHigh>
struct SomeRowsProduct : FewRowsCall {
  static_assert(kDType == DType::kBFloat16 || kDType == DType::kFloat16);
  static constexpr const char* kName = kDType == DType::kBFloat16 ? (kHigh == 1   ? "engine_float8_bfloat16_16_rows"
                                                                     : kHigh == 2 ? "engine_float8_bfloat16_32_rows"
                                                                                  : "engine_float8_bfloat16_64_rows")
                                                                  : (kHigh == 1   ? "engine_float8_float16_16_rows"
                                                                     : kHigh == 2 ? "engine_float8_float16_32_rows"
                                                                                  : "engine_float8_float16_64_rows");
  static constexpr int kThreads = 256, kLanes = device::kFragmentLanes;
  static constexpr bool kStartsEarly = true;
  static constexpr int kAcross = 4;  // tiles of eight outputs; with a gate, half of them are the gate's
  static constexpr int kColumns = kAcross * 8, kFragmentRows = 16;
  static constexpr std::size_t kSharedBytes = kThreads / kLanes * kFragmentRows * kColumns * sizeof(float);

  /// Returns the number of outputs that a block computes.
  ACCORD_ON_DEVICE int outputs() const { return gate.data != nullptr ? kColumns / 2 : kColumns; }
  ACCORD_ON_DEVICE std::int64_t blocks() const { return (n + outputs() - 1) / outputs(); }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    for (std::int64_t work = block.block(); work < blocks(); work += block.blocks()) compute(block, work * outputs());
  }

 private:
  static constexpr int kInputsAtOnce = 64;  // inputs that a warp takes at a time

  template <typename Block>
  ACCORD_ON_DEVICE void compute(Block& block, std::int64_t first) const {
    const int warps = block.threads() / kLanes;
    const std::int64_t steps = (k + kInputsAtOnce - 1) / kInputsAtOnce;
    const Words* rows[kAcross];  // of the outputs that this lane reads
    ACCORD_UNROLLED
    for (int j = 0; j < kAcross; ++j) rows[j] = row_of(first, j * 8 + block.lane() / 4);
    device::Sums sums[kHigh][kAcross] = {};
    Words ahead[kAcross];
    read(block, rows, block.thread() / kLanes, ahead);
    ACCORD_UNROLLED_BY(1)
    for (std::int64_t step = block.thread() / kLanes; step < steps; step += warps) {
      std::uint32_t wide[kAcross][8];
      ACCORD_UNROLLED
      for (int j = 0; j < kAcross; ++j) widen<kDType>(ahead[j], wide[j]);
      read(block, rows, step + warps, ahead);
      ACCORD_UNROLLED
      for (int i = 0; i < kHigh; ++i) {
        std::uint32_t upper[8], lower[8];
        load(block, i * kFragmentRows + block.lane() / 4, step, upper);
        load(block, i * kFragmentRows + 8 + block.lane() / 4, step, lower);
        ACCORD_UNROLLED
        for (int j = 0; j < kAcross; ++j) {
          ACCORD_UNROLLED
          for (int at = 0; at < 8; at += 2)
            block.template multiply<kDType>({upper[at], lower[at], upper[at + 1], lower[at + 1]},
                                            {wide[j][at], wide[j][at + 1]}, sums[i][j]);
        }
      }
    }
    ACCORD_UNROLLED
    for (int i = 0; i < kHigh; ++i) store(block, first, i * kFragmentRows, sums[i]);
  }

  /// Returns the weights of column `column` of a block's sums; null if there are none.
  ACCORD_ON_DEVICE const Words* row_of(std::int64_t first, int column) const {
    const bool of_gate = column >= outputs();
    const std::int64_t output = first + (of_gate ? column - outputs() : column);
    if (output >= n) return nullptr;
    return reinterpret_cast<const Words*>((of_gate ? gate : weight).data + output * k);
  }
  template <typename Block>
  ACCORD_ON_DEVICE void read(Block& block, const Words* const (&rows)[kAcross], std::int64_t step,
                             Words (&to)[kAcross]) const {
    ACCORD_UNROLLED
    for (int j = 0; j < kAcross; ++j)
      to[j] = rows[j] == nullptr ? Words{} : words_at(rows[j], step * 4 + block.lane() % 4, k / 16);
  }
  /// Loads this lane's 16 inputs of a row of x, in pairs.
  template <typename Block>
  ACCORD_ON_DEVICE void load(Block& block, int row, std::int64_t step, std::uint32_t (&to)[8]) const {
    const std::int64_t begin = step * kInputsAtOnce + block.lane() % 4 * 16;
    const bool there = row < m && begin < k;
    const std::byte* const from = x + row * x_row_bytes + begin * 2;
    if ((reinterpret_cast<std::uintptr_t>(x) | static_cast<std::uintptr_t>(x_row_bytes)) % sizeof(Words) == 0) {
      ACCORD_UNROLLED
      for (int word = 0; word < 2; ++word) {
        const Words words = there ? reinterpret_cast<const Words*>(from)[word] : Words{};
        ACCORD_UNROLLED
        for (int i = 0; i < 4; ++i) to[word * 4 + i] = words.of[i];
      }
    } else {
      ACCORD_UNROLLED
      for (int i = 0; i < 8; ++i) {
        const auto* const pair = reinterpret_cast<const std::uint16_t*>(from) + 2 * i;
        to[i] = there ? pair[0] | std::uint32_t{pair[1]} << 16 : 0;
      }
    }
  }

  /// Adds up the warps' sums of 16 rows, and stores the results.
  template <typename Block>
  ACCORD_ON_DEVICE void store(Block& block, std::int64_t first, int row, const device::Sums (&sums)[kAcross]) const {
    constexpr int kEach = kFragmentRows * kColumns;
    auto* const shared = reinterpret_cast<float*>(block.shared());
    block.sync();  // the previous contents are no longer read
    float* const own = shared + block.thread() / kLanes * kEach;
    ACCORD_UNROLLED
    for (int i = 0; i < kAcross * 4; ++i) {
      const int at_row = i % 4 / 2 * 8 + block.lane() / 4, column = i / 4 * 8 + block.lane() % 4 * 2 + i % 2;
      own[at_row * kColumns + column] = sums[i / 4].of[i % 4];
    }
    block.sync();
    const int warps = block.threads() / kLanes;
    for (int at = block.thread(); at < kFragmentRows * outputs(); at += block.threads()) {
      const int to_row = row + at / outputs(), column = at % outputs();
      if (to_row >= m || first + column >= n) continue;
      const float* const place = shared + at / outputs() * kColumns + column;
      float sum = 0.0F, factor = 0.0F;
      for (int warp = 0; warp < warps; ++warp) {
        sum += place[warp * kEach];
        if (gate.data != nullptr) factor += place[warp * kEach + outputs()];
      }
      finish(to_row, first + column, sum, factor);
    }
  }
};

/// The most rows of a SomeRowsProduct.
inline constexpr int kSomeRows = 64;

}  // namespace accord::engine
