#pragma once
// Products of many rows with float8 weights, on tensor cores. A block computes 128 rows of 128 outputs, or of 64 if
// there is a gate, and each of its four warps a quarter. Rows, weights and the scales of groups of inputs are copied to
// shared memory as they are, those of the next step while the current one is multiplied. Weights are widened when a
// warp takes them from there into registers: float8 in shared memory is half of what 16 bits would be, and shared
// memory is what limits products of this form.
//
// A warp takes 64 rows x 64 columns, the largest part whose sums fit into registers, since each number that it reads
// from shared memory is then used 64 times. The order of the inputs within a product is free: a lane takes four
// neighbors of 16, which are one word of float8 and two words of a row.

#include "engine/gpu/kernels/product_kernel.hpp"

namespace accord::engine {

/// y as in ProductCall, for any number of rows. x has 16-bit floats. The weight, and the gate if there is one, are
/// float8, with k a multiple of 16. x and the weights begin at multiples of 16 bytes, and so do the rows of x. If
/// groups of inputs have scales, n is a multiple of 4, and the scales begin at a multiple of 16 bytes.
template <DType kDType>
struct ManyRowsProduct : ProductCall {
  static_assert(kDType == DType::kBFloat16 || kDType == DType::kFloat16);
  static constexpr const char* kName =
      kDType == DType::kBFloat16 ? "engine_float8_bfloat16_many_rows" : "engine_float8_float16_many_rows";
  static constexpr int kThreads = 128, kLanes = device::kFragmentLanes;
  static constexpr int kRows = 128, kColumns = 128;
  static constexpr int kInputs = 64;                                          // of a step
  static constexpr int kRowWords = kInputs / 8, kColumnWords = kInputs / 16;  // of one row or column in a step
  static constexpr int kWeights = kRows * kRowWords;                          // where they begin in a step's words
  static constexpr int kScales = kWeights + kColumns * kColumnWords;
  static constexpr int kScaleWords = kColumns / 4;  // of one group
  static constexpr int kWordsOfStep = kScales + kInputs / 16 * kScaleWords;
  static constexpr std::size_t kStepBytes = 2 * kWordsOfStep * sizeof(Words);  // of two steps
  static constexpr int kWarpRows = 64, kWarpColumns = 64, kWarps = 4;
  static constexpr int kSumsStride = kWarpColumns + 4;  // rows begin in different banks
  static constexpr std::size_t kSumsBytes = kThreads / kLanes * kWarpRows * kSumsStride * sizeof(float);
  static constexpr std::size_t kSharedBytes = kStepBytes > kSumsBytes ? kStepBytes : kSumsBytes;

  ACCORD_ON_DEVICE int outputs() const { return gate.data != nullptr ? kColumns / 2 : kColumns; }
  ACCORD_ON_DEVICE std::int64_t row_tiles() const { return (m + kRows - 1) / kRows; }
  ACCORD_ON_DEVICE std::int64_t blocks() const { return row_tiles() * ((n + outputs() - 1) / outputs()); }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t works = blocks();
    // Blocks that run side by side compute the same outputs, so what they read of a weight is read once for all rows.
    for (std::int64_t work = block.block(); work < works; work += block.blocks()) {
      const Tile tile{work % row_tiles() * kRows, work / row_tiles() * outputs()};
      const int warps = block.threads() / kLanes;
      for (int first = 0; first < kWarps; first += warps) compute(block, tile, first + block.thread() / kLanes);
    }
  }

 private:
  static constexpr int kHigh = kWarpRows / 16, kAcross = kWarpColumns / 8;
  struct Tile {
    std::int64_t row = 0, output = 0;  // the first ones
  };
  struct WarpSums {
    device::Sums of[kHigh][kAcross] = {};
  };
  /// Two neighboring words of a row.
  struct alignas(8) Pairs {
    std::uint32_t of[2];
  };

  /// Warp `warp` of kWarps computes its part of the tile; further warps only help to load the tile.
  template <typename Block>
  ACCORD_ON_DEVICE void compute(Block& block, const Tile& tile, int warp) const {
    auto* const memory = reinterpret_cast<Words*>(block.shared());
    const std::int64_t steps = (k + kInputs - 1) / kInputs;
    WarpSums sums;
    block.sync();  // the previous contents are no longer read
    start_step(block, tile, 0, memory);
    ACCORD_UNROLLED_BY(1)
    for (std::int64_t step = 0; step < steps; ++step) {
      block.wait_copies();
      block.sync();  // this step's words are there, and the other half is no longer read
      if (step + 1 < steps) start_step(block, tile, step + 1, memory + (step + 1) % 2 * kWordsOfStep);
      if (warp < kWarps) add_step(block, memory + step % 2 * kWordsOfStep, warp, sums);
    }
    block.sync();
    if (warp < kWarps) store(block, tile, warp, sums);
  }

  // Words are permuted so that a warp's reads are spread over all banks: neighbors of four rows of x, or one of eight
  // columns.
  ACCORD_ON_DEVICE static int row_slot(int row, int word) { return row * kRowWords + (word ^ row % 4 * 2); }
  ACCORD_ON_DEVICE static int column_slot(int column, int word) {
    return kWeights + column * kColumnWords + (word ^ column / 2 % 4);
  }

  /// The columns of a warp are outputs; with a gate, the first half is the weight's and the second half the gate's of
  /// the same outputs. Returns the output of a column, counted from the tile's first.
  ACCORD_ON_DEVICE int output_of(int column) const {
    return gate.data != nullptr ? column / kWarpColumns * (kWarpColumns / 2) + column % (kWarpColumns / 2) : column;
  }
  ACCORD_ON_DEVICE const WeightOperand& matrix_of(int column) const {
    return gate.data != nullptr && column % kWarpColumns >= kWarpColumns / 2 ? gate : weight;
  }

  /// Starts to copy the words of a step. Rows, outputs and inputs past the last are zeros.
  template <typename Block>
  ACCORD_ON_DEVICE void start_step(Block& block, const Tile& tile, std::int64_t step, Words* memory) const {
    const std::int64_t input = step * kInputs;
    ACCORD_UNROLLED_BY(4)
    for (int at = block.thread(); at < kRows * kRowWords; at += block.threads()) {
      const int row = at / kRowWords, word = at % kRowWords;
      const bool is_there = tile.row + row < m && input + word * 8 < k;
      const std::byte* const from = x + (tile.row + row) * x_row_bytes + (input + word * 8) * 2;
      block.copy_async(memory + row_slot(row, word), reinterpret_cast<const Words*>(is_there ? from : x), is_there);
    }
    ACCORD_UNROLLED_BY(4)
    for (int at = block.thread(); at < kColumns * kColumnWords; at += block.threads()) {
      const int column = at / kColumnWords, word = at % kColumnWords;
      const std::int64_t output = tile.output + output_of(column);
      const bool is_there = output < n && input + word * 16 < k;
      const std::byte* const data = matrix_of(column).data;
      const std::byte* const from = data + output * k + input + word * 16;
      block.copy_async(memory + column_slot(column, word), reinterpret_cast<const Words*>(is_there ? from : data),
                       is_there);
    }
    if (!weight.has_groups()) return;
    const std::int64_t first = input >> weight.group_bits, groups = weight.groups(k);
    const int of_step = ((kInputs - 1) >> weight.group_bits) + 1;
    for (int at = block.thread(); at < of_step * kScaleWords; at += block.threads()) {
      const int group = at / kScaleWords, column = at % kScaleWords * 4;
      const std::int64_t output = tile.output + output_of(column);
      const bool is_there = output < n && first + group < groups;
      const float* const scales = matrix_of(column).scales;
      const float* const from = scales + (first + group) * n + output;
      block.copy_async(memory + kScales + at, reinterpret_cast<const Words*>(is_there ? from : scales), is_there);
    }
  }

  template <typename Block>
  ACCORD_ON_DEVICE void add_step(Block& block, const Words* memory, int warp, WarpSums& sums) const {
    const int first_row = warp / 2 * kWarpRows, first_column = warp % 2 * kWarpColumns;
    const auto* const group_scales = reinterpret_cast<const float*>(memory + kScales) + first_column + block.lane() / 4;
    float scales[kAcross];
    ACCORD_UNROLLED
    for (int j = 0; j < kAcross; ++j) scales[j] = 1.0F;
    ACCORD_UNROLLED
    for (int part = 0; part < kInputs / 16; ++part) {
      if (weight.has_groups() && (part == 0 || weight.group_bits < 6)) {
        ACCORD_UNROLLED
        for (int j = 0; j < kAcross; ++j)
          scales[j] = group_scales[((part * 16) >> weight.group_bits) * kColumns + j * 8];
      }
      device::Tiles x_tiles[kHigh], codes[kAcross / 4];
      ACCORD_UNROLLED
      for (int i = 0; i < kHigh; ++i) x_tiles[i] = rows_at(block, memory, first_row + i * 16, part);
      ACCORD_UNROLLED
      for (int j = 0; j < kAcross / 4; ++j)
        codes[j] = block.load_tiles(memory + column_slot(first_column + j * 32 + block.lane(), part));
      ACCORD_UNROLLED
      for (int j = 0; j < kAcross; ++j) {
        const std::uint32_t four = codes[j / 4].of[j % 4];
        const device::TilePair pair =
            weight.has_groups()
                ? device::TilePair{widened_pair<kDType>(four & 0xFFFFU, scales[j]),
                                   widened_pair<kDType>(four >> 16, scales[j])}
                : device::TilePair{widened_pair<kDType>(four & 0xFFFFU), widened_pair<kDType>(four >> 16)};
        ACCORD_UNROLLED
        for (int i = 0; i < kHigh; ++i) block.template multiply<kDType>(x_tiles[i], pair, sums.of[i][j]);
      }
    }
  }

  /// Returns 16 inputs of 16 rows, of which each lane takes four neighbors.
  template <typename Block>
  ACCORD_ON_DEVICE static device::Tiles rows_at(Block& block, const Words* memory, int row, int part) {
    const int upper = row + block.lane() / 4, word = part * 2 + block.lane() % 4 / 2, half = block.lane() % 2;
    const Pairs above = reinterpret_cast<const Pairs*>(memory + row_slot(upper, word))[half];
    const Pairs below = reinterpret_cast<const Pairs*>(memory + row_slot(upper + 8, word))[half];
    return {{above.of[0], below.of[0], above.of[1], below.of[1]}};
  }

  /// Stores a warp's part of the outputs, by way of shared memory: neighboring lanes then store neighboring outputs.
  template <typename Block>
  ACCORD_ON_DEVICE void store(Block& block, const Tile& tile, int warp, const WarpSums& sums) const {
    float* const own = reinterpret_cast<float*>(block.shared()) + block.thread() / kLanes * (kWarpRows * kSumsStride);
    ACCORD_UNROLLED
    for (int i = 0; i < kHigh; ++i) {
      ACCORD_UNROLLED
      for (int at = 0; at < kAcross * 4; ++at) {
        const int row = i * 16 + at % 4 / 2 * 8 + block.lane() / 4;
        own[row * kSumsStride + at / 4 * 8 + block.lane() % 4 * 2 + at % 2] = sums.of[i][at / 4].of[at % 4];
      }
    }
    block.sync_warp();
    const int across = gate.data != nullptr ? kWarpColumns / 2 : kWarpColumns;
    const std::int64_t first_row = tile.row + warp / 2 * kWarpRows, first = tile.output + warp % 2 * across;
    for (int row = 0; row < kWarpRows && first_row + row < m; ++row) {
      for (int column = block.lane(); column < across; column += kLanes) {
        const float* const sum = own + row * kSumsStride + column;
        if (first + column < n)
          finish(first_row + row, first + column, *sum, gate.data != nullptr ? sum[kWarpColumns / 2] : 0.0F);
      }
    }
  }
};

}  // namespace accord::engine
