#pragma once
// Products on tensor cores of so few rows that a weight is read at the speed of memory. Each block computes some
// outputs of all rows. Its warps divide the inputs among them. Each warp reads its part of the weight straight into
// registers, and the words of a later step before it uses those of the current one. Then the sums of the warps are
// added up, always in the same order.
//
// Float8 is widened to 16 bits in registers, which hold all of its values. Where groups of inputs have scales, the
// product of element and scale is rounded to x's dtype there.
//
// The order of the inputs within a product is free. A lane takes 16 of 64 inputs, for the weight as for x, four for
// each of four products: the 16 neighbors of one word of float8, or the 8 of a word of 16-bit elements and the 8 that
// are 32 inputs further on, so that the lanes of an output read 64 neighboring bytes at a time.

#include "engine/gpu/kernels/product_kernel.hpp"

namespace accord::engine {

/// The most rows of a SomeRowsProduct.
inline constexpr int kSomeRows = 64;

/// Indexed by whether weights are float8, whether rows are float16, and the most rows: 8, 16, 32 or 64.
inline constexpr const char* kSomeRowsNames[2][2][4] = {
    {{"engine_bfloat16_8_rows", nullptr, nullptr, nullptr}, {"engine_float16_8_rows", nullptr, nullptr, nullptr}},
    {{"engine_float8_bfloat16_8_rows", "engine_float8_bfloat16_16_rows", "engine_float8_bfloat16_32_rows",
      "engine_float8_bfloat16_64_rows"},
     {"engine_float8_float16_8_rows", "engine_float8_float16_16_rows", "engine_float8_float16_32_rows",
      "engine_float8_float16_64_rows"}}};

/// For at most kRows rows: 8, 16, 32 or 64. x has 16-bit floats. The weight, and the gate if there is one, have x's
/// dtype, or are both float8 with k a multiple of 16. x and the weights begin at multiples of 16 bytes, and so do
/// their rows.
template <DType kDType, WeightKind kWeights, int kRows>
struct SomeRowsProduct : ProductCalls {
  static_assert(kDType == DType::kBFloat16 || kDType == DType::kFloat16);
  static constexpr bool kFloat8 = kWeights == WeightKind::kFloat8;
  static constexpr const char* kName = kSomeRowsNames[kFloat8][kDType == DType::kFloat16][kRows == 8    ? 0
                                                                                          : kRows == 16 ? 1
                                                                                          : kRows == 32 ? 2
                                                                                                        : 3];
  static constexpr int kThreads = 256, kLanes = device::kFragmentLanes;
  static constexpr bool kStartsEarly = true;
  static constexpr int kAcross =
      kRows == 8 ? 2 : 4;  // tiles of eight outputs; with a gate, half of them are the gate's
  static constexpr int kColumns = kAcross * 8, kFragmentRows = kRows == 8 ? 8 : 16;
  static constexpr std::size_t kSharedBytes = kThreads / kLanes * kFragmentRows * kColumns * sizeof(float);

  ACCORD_ON_DEVICE std::int64_t blocks() const {
    std::int64_t blocks = 0;
    for (int i = 0; i < count; ++i) blocks += blocks_of(of[i]);
    return blocks;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    std::int64_t work = block.block();  // of those of all calls together
    for (int i = 0; i < count; ++i) {
      const ProductCall& call = of[i];
      const std::int64_t works = blocks_of(call);
      for (; work < works; work += block.blocks()) compute(block, call, work * outputs_of(call));
      work -= works;
    }
  }

 private:
  static constexpr int kInputsAtOnce = 64;  // inputs that a warp takes at a time
  static constexpr int kHigh = kRows < 16 ? 1 : kRows / 16;
  static constexpr int kWordsOfLane = kFloat8 ? 1 : 2;  // of an output's weights in a step
  static constexpr int kStepsAhead = kRows == 8 ? 2 : 1;

  /// A lane's part of the weights in a step.
  struct Part {
    Words words[kAcross][kWordsOfLane];
    float scales[kAcross];  // of groups of float8
  };
  /// The weights whose part a lane reads, one output for each tile.
  struct Lane {
    const Words* rows[kAcross];  // null if there is no such output
    const float* scales[kAcross];
  };

  /// Returns the number of outputs that a block computes at once.
  ACCORD_ON_DEVICE static int outputs_of(const ProductCall& call) {
    return call.gate.data != nullptr ? kColumns / 2 : kColumns;
  }
  ACCORD_ON_DEVICE static std::int64_t blocks_of(const ProductCall& call) {
    return (call.n + outputs_of(call) - 1) / outputs_of(call);
  }

  template <typename Block>
  ACCORD_ON_DEVICE static void compute(Block& block, const ProductCall& call, std::int64_t first) {
    const int warps = block.threads() / kLanes;
    const std::int64_t steps = (call.k + kInputsAtOnce - 1) / kInputsAtOnce;
    Lane lane;
    ACCORD_UNROLLED
    for (int j = 0; j < kAcross; ++j) place(call, first, j * 8 + block.lane() / 4, lane.rows[j], lane.scales[j]);
    device::Sums sums[kHigh][kAcross] = {};
    Part ahead[kStepsAhead];
    const std::int64_t begin = block.thread() / kLanes;
    ACCORD_UNROLLED
    for (int i = 0; i < kStepsAhead; ++i) read(block, call, lane, begin + i * warps, ahead[i]);
    ACCORD_UNROLLED_BY(1)
    for (std::int64_t step = begin; step < steps; step += kStepsAhead * warps) {
      ACCORD_UNROLLED
      for (int i = 0; i < kStepsAhead; ++i) {  // steps past the last are zeros
        std::uint32_t pairs[kAcross][8];
        ACCORD_UNROLLED
        for (int j = 0; j < kAcross; ++j) pairs_of(call, ahead[i], j, pairs[j]);
        read(block, call, lane, step + (i + kStepsAhead) * warps, ahead[i]);
        add_step(block, call, step + i * warps, pairs, sums);
      }
    }
    ACCORD_UNROLLED
    for (int i = 0; i < kHigh; ++i) store(block, call, first, i * kFragmentRows, sums[i]);
  }

  /// Finds the weights, and their scales, of column `column` of a block's sums.
  ACCORD_ON_DEVICE static void place(const ProductCall& call, std::int64_t first, int column, const Words*& row,
                                     const float*& scales) {
    const bool of_gate = column >= outputs_of(call);
    const std::int64_t output = first + (of_gate ? column - outputs_of(call) : column);
    const WeightOperand& matrix = of_gate ? call.gate : call.weight;
    constexpr std::int64_t kBytes = kFloat8 ? 1 : 2;
    const bool is_there = output < call.n;
    row = is_there ? reinterpret_cast<const Words*>(matrix.data + output * call.weight_stride(kBytes)) : nullptr;
    scales = kFloat8 && is_there ? matrix.scales + output : nullptr;
  }

  /// Returns where word `i` of the 16 inputs of this lane is, counted in words of 16-bit elements.
  template <typename Block>
  ACCORD_ON_DEVICE static std::int64_t word_of(Block& block, std::int64_t step, int i) {
    return step * 8 + (kFloat8 ? block.lane() % 4 * 2 + i : block.lane() % 4 + i * 4);
  }

  template <typename Block>
  ACCORD_ON_DEVICE static void read(Block& block, const ProductCall& call, const Lane& lane, std::int64_t step,
                                    Part& to) {
    ACCORD_UNROLLED
    for (int j = 0; j < kAcross; ++j) {
      const bool is_there = lane.rows[j] != nullptr;
      ACCORD_UNROLLED
      for (int i = 0; i < kWordsOfLane; ++i) {
        const std::int64_t word = kFloat8 ? word_of(block, step, 0) / 2 : word_of(block, step, i);
        to.words[j][i] = is_there ? words_at(lane.rows[j], word, call.k / (kFloat8 ? 16 : 8)) : Words{};
      }
      if constexpr (kFloat8) {
        const std::int64_t input = word_of(block, step, 0) * 8;
        to.scales[j] = is_there && call.weight.has_groups() && input < call.k
                           ? lane.scales[j][(input >> call.weight.group_bits) * call.n]
                           : 0.0F;
      }
    }
  }

  /// Returns this lane's 16 inputs of an output as pairs of kDType.
  ACCORD_ON_DEVICE static void pairs_of(const ProductCall& call, const Part& part, int j, std::uint32_t (&pairs)[8]) {
    if constexpr (!kFloat8) {
      ACCORD_UNROLLED
      for (int i = 0; i < 8; ++i) pairs[i] = part.words[j][i / 4].of[i % 4];
    } else if (call.weight.has_groups()) {
      widen_scaled<kDType>(part.words[j][0], part.scales[j], pairs);
    } else {
      widen<kDType>(part.words[j][0], pairs);
    }
  }

  template <typename Block>
  ACCORD_ON_DEVICE static void add_step(Block& block, const ProductCall& call, std::int64_t step,
                                        const std::uint32_t (&pairs)[kAcross][8],
                                        device::Sums (&sums)[kHigh][kAcross]) {
    ACCORD_UNROLLED
    for (int i = 0; i < kHigh; ++i) {
      std::uint32_t upper[8], lower[8] = {};
      load(block, call, i * 16 + block.lane() / 4, step, upper);
      if constexpr (kRows > 8) load(block, call, i * 16 + 8 + block.lane() / 4, step, lower);
      ACCORD_UNROLLED
      for (int j = 0; j < kAcross; ++j) {
        ACCORD_UNROLLED
        for (int at = 0; at < 8; at += 2)
          block.template multiply<kDType>({upper[at], lower[at], upper[at + 1], lower[at + 1]},
                                          {pairs[j][at], pairs[j][at + 1]}, sums[i][j]);
      }
    }
  }

  /// Loads this lane's 16 inputs of a row of x, in pairs.
  template <typename Block>
  ACCORD_ON_DEVICE static void load(Block& block, const ProductCall& call, int row, std::int64_t step,
                                    std::uint32_t (&to)[8]) {
    const auto* const words = reinterpret_cast<const Words*>(call.x + row * call.x_row_bytes);
    ACCORD_UNROLLED
    for (int i = 0; i < 2; ++i) {
      const Words word = row < call.m ? words_at(words, word_of(block, step, i), call.k / 8) : Words{};
      ACCORD_UNROLLED
      for (int at = 0; at < 4; ++at) to[i * 4 + at] = word.of[at];
    }
  }

  /// Adds up the warps' sums of the rows of a fragment, and stores the results.
  template <typename Block>
  ACCORD_ON_DEVICE static void store(Block& block, const ProductCall& call, std::int64_t first, int row,
                                     const device::Sums (&sums)[kAcross]) {
    constexpr int kEach = kFragmentRows * kColumns;
    auto* const shared = reinterpret_cast<float*>(block.shared());
    block.sync();  // the previous contents are no longer read
    float* const own = shared + block.thread() / kLanes * kEach;
    ACCORD_UNROLLED
    for (int i = 0; i < kAcross * 4; ++i) {
      if (i % 4 / 2 * 8 >= kFragmentRows) continue;
      const int at_row = i % 4 / 2 * 8 + block.lane() / 4, column = i / 4 * 8 + block.lane() % 4 * 2 + i % 2;
      own[at_row * kColumns + column] = sums[i / 4].of[i % 4];
    }
    block.sync();
    const int warps = block.threads() / kLanes, outputs = outputs_of(call);
    const bool is_gated = call.gate.data != nullptr;
    for (int at = block.thread(); at < kFragmentRows * outputs; at += block.threads()) {
      const int to_row = row + at / outputs, column = at % outputs;
      if (to_row >= call.m || first + column >= call.n) continue;
      const float* const place = shared + at / outputs * kColumns + column;
      float sum = 0.0F, factor = 0.0F;
      for (int warp = 0; warp < warps; ++warp) {
        sum += place[warp * kEach];
        if (is_gated) factor += place[warp * kEach + outputs];
      }
      call.finish(to_row, first + column, sum, factor);
    }
  }
};

}  // namespace accord::engine
