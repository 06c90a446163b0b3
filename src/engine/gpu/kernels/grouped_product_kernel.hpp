#pragma once
// Products of many rows with the weights of their experts. Each block computes a tile of outputs of one expert, on
// tensor cores if the numbers have 16 bits. The words of the rows and weights of one step are in shared memory while
// those of the next step are on their way from the GPU's memory. Float8 weights are read as they are and widened on
// their way to shared memory, to the dtype of the rows, which holds all of their values. Scales of outputs are applied
// to the finished sums; an element that shares a scale with its group of inputs is multiplied by it when it is widened.

#include "engine/gpu/kernels/expert_kernels.hpp"

namespace accord::engine {

/// Indexed by whether weights are float8, the dtype of the rows, and whether there is a gate.
inline constexpr const char* kManyRowsNames[2][3][2] = {
    {{"engine_experts_float32", "engine_experts_float32_gated"},
     {"engine_experts_bfloat16", "engine_experts_bfloat16_gated"},
     {"engine_experts_float16", "engine_experts_float16_gated"}},
    {{"engine_float8_experts_float32", "engine_float8_experts_float32_gated"},
     {"engine_float8_experts_bfloat16", "engine_float8_experts_bfloat16_gated"},
     {"engine_float8_experts_float16", "engine_float8_experts_float16_gated"}}};

/// Tiles have at most kRows rows.
template <DType kDType, bool kGated, WeightKind kWeights>
struct ExpertsManyRows : ExpertProduct {
  static constexpr bool kFloat8 = kWeights == WeightKind::kFloat8;
  static constexpr const char* kName = kManyRowsNames[kFloat8][kDType == DType::kFloat32    ? 0
                                                               : kDType == DType::kBFloat16 ? 1
                                                                                            : 2][kGated];
  static constexpr int kThreads = 256, kLanes = device::kFragmentLanes;
  static constexpr int kRows = 64;
  /// Limited by the registers that hold a warp's sums.
  static constexpr int kOutputs = kGated || kDType == DType::kFloat32 ? 64 : 128;
  static constexpr int kWords = 4;  // of each row in a step
  static constexpr int kWordsOfStep = (kRows + (kGated ? 2 : 1) * kOutputs) * kWords;
  static constexpr std::size_t kSharedBytes = 2 * kWordsOfStep * sizeof(Words);  // of two steps

  /// Returns the number of tiles of rows times the number of tiles of outputs.
  ACCORD_ON_DEVICE std::int64_t blocks() const { return (call.n + kOutputs - 1) / kOutputs * tile_count; }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t works = blocks();
    // Blocks that run side by side compute the same outputs of all experts, so what they read of a weight is read
    // once for all of its tiles.
    for (std::int64_t work = block.block(); work < works; work += block.blocks()) {
      const ExpertTile tile = tiles[work % tile_count];
      if (tile.rows == 0) continue;
      const int warps = block.threads() / kLanes;
      for (int first = 0; first < kWarps; first += warps)
        compute(block, {tile, work / tile_count * kOutputs}, first + block.thread() / kLanes);
    }
  }

 private:
  static constexpr int kWarpsAcross = 4, kWarps = 8;
  static constexpr int kWarpRows = kRows / (kWarps / kWarpsAcross), kWarpOutputs = kOutputs / kWarpsAcross;
  static constexpr int kHigh = kWarpRows / 16, kAcross = kWarpOutputs / 8;  // fragments of a warp's sums
  static constexpr int kEach = kElementsOfWords<kDType>, kBytes = 16 / kEach;
  static constexpr int kAhead = kWordsOfStep / kThreads;  // words that a thread loads ahead
  static_assert(kWordsOfStep % kThreads == 0);

  struct Place {
    ExpertTile tile;
    std::int64_t first_output = 0;
  };
  struct WarpSums {
    device::Sums of[kHigh][kAcross] = {};
  };

  /// Warp `warp` of kWarps computes its part of the tile; further warps only help to load the tile.
  template <typename Block>
  ACCORD_ON_DEVICE void compute(Block& block, const Place& place, int warp) const {
    auto* const memory = reinterpret_cast<Words*>(block.shared());
    const std::int64_t steps = (call.k + kWords * kEach - 1) / (kWords * kEach);
    const bool has_part = warp < kWarps;
    const int row = warp / kWarpsAcross * kWarpRows, output = warp % kWarpsAcross * kWarpOutputs;
    const std::byte* rows[kAhead];  // of this thread's words, whose index in a row is always the same
    ACCORD_UNROLLED
    for (int i = 0; i < kAhead; ++i) rows[i] = row_of(place, (block.thread() + i * block.threads()) / kWords);
    WarpSums sums, gates;
    block.sync();  // the previous contents are no longer read
    load_step(block, place, 0, memory);
    block.sync();
    ACCORD_UNROLLED_BY(1)
    for (std::int64_t step = 0; step < steps; ++step) {
      Words* const next = memory + (step + 1) % 2 * kWordsOfStep;
      Words ahead[kAhead];
      ACCORD_UNROLLED
      for (int i = 0; i < kAhead; ++i) {
        const int of_row = (block.thread() + i * block.threads()) / kWords;
        ahead[i] = read(place, rows[i], of_row, (step + 1) * kWords + block.thread() % kWords);
      }
      if (has_part) add_step(block, memory + step % 2 * kWordsOfStep, row, output, sums, gates);
      ACCORD_UNROLLED
      for (int i = 0; i < kAhead; ++i) {
        const int at = block.thread() + i * block.threads();
        next[slot(at)] = widened_if_float8(ahead[i], at / kWords);
      }
      if (kAhead * block.threads() < kWordsOfStep) load_step(block, place, step + 1, next, kAhead);
      block.sync();
    }
    if (has_part) store(block, place, row, output, sums, gates);
  }

  /// Loads the words of a step, except those of the first `turns` turns.
  template <typename Block>
  ACCORD_ON_DEVICE void load_step(Block& block, const Place& place, std::int64_t step, Words* memory,
                                  int turns = 0) const {
    for (int at = block.thread() + turns * block.threads(); at < kWordsOfStep; at += block.threads())
      memory[slot(at)] = widened_if_float8(
          read(place, row_of(place, at / kWords), at / kWords, step * kWords + at % kWords), at / kWords);
  }

  /// Returns where the `at`-th word of a step is stored. The kWords words of a row follow each other, permuted so
  /// that the words of the same index in eight rows are in different banks.
  ACCORD_ON_DEVICE static int slot(int at) { return slot(at / kWords, at % kWords); }
  ACCORD_ON_DEVICE static int slot(int row, int word) { return row * kWords + (word ^ (row / 2 % kWords)); }

  /// The rows of x come first, then the weight's outputs, then the gate's. Returns null if there is no such row.
  ACCORD_ON_DEVICE const std::byte* row_of(const Place& place, int row) const {
    if (row < kRows) return row < place.tile.rows ? call.x + (place.tile.first + row) * call.x_row_bytes : nullptr;
    const std::int64_t output = place.first_output + (row - kRows) % kOutputs;
    const std::byte* const matrix = (row < kRows + kOutputs ? call.weight : call.gate).data;
    constexpr int kWeightBytes = kFloat8 ? 1 : kBytes;
    return output < call.n ? matrix + place.tile.expert * weight_bytes + output * call.weight_stride(kWeightBytes)
                           : nullptr;
  }
  ACCORD_ON_DEVICE static bool is_float8_row(int row) { return kFloat8 && row >= kRows; }

  /// Reads one word. For float8 it holds the unwidened elements and the scale of their group, for widened_if_float8()
  /// to use once they have arrived. Elements past the last one are zeros.
  ACCORD_ON_DEVICE Words read(const Place& place, const std::byte* from, int row, std::int64_t word) const {
    if (from == nullptr) return {};
    if (!is_float8_row(row)) return read_word(from, word);
    Words words{};
    if (word * kEach >= call.k) return words;
    if ((reinterpret_cast<std::uintptr_t>(from) | static_cast<std::uintptr_t>(call.k)) % kEach == 0) {
      const auto* const codes = reinterpret_cast<const std::uint32_t*>(from + word * kEach);
      words.of[0] = codes[0];
      if constexpr (kEach == 8) words.of[1] = codes[1];
    } else {
      for (int i = 0; i < kEach && word * kEach + i < call.k; ++i)
        words.of[i / 4] |= std::to_integer<std::uint32_t>(from[word * kEach + i]) << (i % 4 * 8);
    }
    if (call.weight.has_groups()) {
      WeightOperand matrix = row < kRows + kOutputs ? call.weight : call.gate;
      matrix.scales += place.tile.expert * call.n * matrix.groups(call.k);
      const std::int64_t output = place.first_output + (row - kRows) % kOutputs;
      words.of[3] = device::bits_of(matrix.scale(call.n, output, word * kEach));
    }
    return words;
  }
  ACCORD_ON_DEVICE Words widened_if_float8(const Words& words, int row) const {
    if constexpr (kFloat8) {
      if (is_float8_row(row)) {
        return call.weight.has_groups()
                   ? widened_scaled<kDType>({words.of[0], words.of[1]}, device::float_of(words.of[3]))
                   : widened<kDType>({words.of[0], words.of[1]});
      }
    }
    return words;
  }
  ACCORD_ON_DEVICE Words read_word(const std::byte* row, std::int64_t word) const {
    if ((reinterpret_cast<std::uintptr_t>(row) | static_cast<std::uintptr_t>(call.k * kBytes)) % sizeof(Words) == 0)
      return words_at(reinterpret_cast<const Words*>(row), word, call.k / kEach);
    Words words{};
    for (int i = 0; i < kEach && word * kEach + i < call.k; ++i) {
      const std::int64_t at = word * kEach + i;
      if constexpr (kBytes == 4) {
        words.of[i] = reinterpret_cast<const std::uint32_t*>(row)[at];
      } else {
        words.of[i / 2] |= std::uint32_t{reinterpret_cast<const std::uint16_t*>(row)[at]} << (i % 2 * 16);
      }
    }
    return words;
  }

  template <typename Block>
  ACCORD_ON_DEVICE void add_step(Block& block, const Words* memory, int row, int output, WarpSums& sums,
                                 WarpSums& gates) const {
    if constexpr (kDType == DType::kFloat32) {
      ACCORD_UNROLLED_BY(1)
      for (int word = 0; word < kWords; ++word) {
        Words x[2 * kHigh];
        ACCORD_UNROLLED
        for (int i = 0; i < 2 * kHigh; ++i) x[i] = memory[slot(row + i * 8 + block.lane() / 4, word)];
        add_numbers(block, memory, x, word, kRows + output, sums);
        if constexpr (kGated) add_numbers(block, memory, x, word, kRows + kOutputs + output, gates);
      }
    } else {
      ACCORD_UNROLLED
      for (int word = 0; word < kWords; word += 2) {
        device::Tiles x[kHigh];
        ACCORD_UNROLLED
        for (int i = 0; i < kHigh; ++i)
          x[i] = block.load_tiles(memory + slot(row + i * 16 + block.lane() % 16, word + block.lane() / 16));
        add_fragments(block, memory, x, word, kRows + output, sums);
        if constexpr (kGated) add_fragments(block, memory, x, word, kRows + kOutputs + output, gates);
      }
    }
  }
  /// x[i] holds 16 rows of x. The weights begin at row `first`; the left and right tiles of each eight outputs follow
  /// one another.
  template <typename Block>
  ACCORD_ON_DEVICE static void add_fragments(Block& block, const Words* memory, const device::Tiles (&x)[kHigh],
                                             int word, int first, WarpSums& sums) {
    ACCORD_UNROLLED
    for (int j = 0; j < kAcross; j += 2) {
      const int output = first + j * 8 + block.lane() / 16 * 8 + block.lane() % 8;
      const device::Tiles w = block.load_tiles(memory + slot(output, word + block.lane() / 8 % 2));
      ACCORD_UNROLLED
      for (int i = 0; i < kHigh; ++i) {
        block.template multiply<kDType>(x[i], {w.of[0], w.of[1]}, sums.of[i][j]);
        block.template multiply<kDType>(x[i], {w.of[2], w.of[3]}, sums.of[i][j + 1]);
      }
    }
  }
  /// Each lane computes the sums that it would have in fragments.
  template <typename Block>
  ACCORD_ON_DEVICE static void add_numbers(Block& block, const Words* memory, const Words (&x)[2 * kHigh], int word,
                                           int first, WarpSums& sums) {
    ACCORD_UNROLLED
    for (int j = 0; j < 2 * kAcross; ++j) {
      const Words w = memory[slot(first + j / 2 * 8 + block.lane() % 4 * 2 + j % 2, word)];
      ACCORD_UNROLLED
      for (int i = 0; i < 2 * kHigh; ++i) {
        float& sum = sums.of[i / 2][j / 2].of[i % 2 * 2 + j % 2];
        ACCORD_UNROLLED
        for (int each = 0; each < kEach; ++each)
          sum = multiply_add(element_of<kDType>(x[i], each), element_of<kDType>(w, each), sum);
      }
    }
  }

  template <typename Block>
  ACCORD_ON_DEVICE void store(Block& block, const Place& place, int row, int output, const WarpSums& sums,
                              const WarpSums& gates) const {
    ACCORD_UNROLLED
    for (int i = 0; i < kHigh * kAcross * 4; ++i) {
      const int high = i / 4 / kAcross, across = i / 4 % kAcross, of = i % 4;
      const int to_row = row + high * 16 + of / 2 * 8 + block.lane() / 4;
      const std::int64_t to = place.first_output + output + across * 8 + block.lane() % 4 * 2 + of % 2;
      if (to_row >= place.tile.rows || to >= call.n) continue;
      float sum = sums.of[high][across].of[of], factor = (kGated ? gates : sums).of[high][across].of[of];
      if (kFloat8 && !call.weight.has_groups()) {
        const std::int64_t scale = place.tile.expert * call.n + to;
        sum *= call.weight.scales[scale];
        factor *= (kGated ? call.gate : call.weight).scales[scale];
      }
      const float active = activated(call.activation, factor);
      device::store_float(static_cast<std::byte*>(call.y) + (place.tile.first + to_row) * y_row_bytes, call.y_dtype, to,
                          kGated ? sum * active : active);
    }
  }
};

}  // namespace accord::engine
