#pragma once
// Mixtures of experts. Choices are sorted by expert; the choices of one expert stay in the order of their rows. The
// rows of each expert are cut into tiles, and a product processes one tile after another. The experts' results for a
// row are added up in the order of the row's choices.

#include "engine/gpu/kernels/operands.hpp"
#include "engine/gpu/kernels/product_kernel.hpp"
#include "kernels/expert_gate.hpp"

namespace accord::engine {

/// Rows [first, first + rows) of the sorted rows, all of one expert. May be empty.
struct ExpertTile {
  std::int64_t first = 0;
  std::int32_t expert = 0, rows = 0;
};

/// Sorts the choices of this rank's experts. Each block has one expert and reads all ids, so no block waits for
/// another, and the order is that of the ids whatever the timing. Shared memory: an int32 for each thread.
struct GroupChoices {
  static constexpr const char* kName = "engine_group_choices";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;
  const void* ids = nullptr;  ///< [rows, top_k], contiguous
  DType id_dtype = DType::kInt64;
  std::int64_t choices = 0, top_k = 1;
  std::int64_t first_expert = 0, experts = 0, total_experts = 0;  ///< this rank's experts, and how many all ranks have
  std::int64_t tile_rows = 1;
  std::int64_t* tokens = nullptr;  ///< [choices]: the row of each sorted choice; past the last, the number of rows
  /// [choices]: the position of each choice among the sorted ones; -1 if another rank has its expert.
  std::int64_t* places = nullptr;
  ExpertTile* tiles = nullptr;  ///< [tile_count()]
  FaultReport report;

  /// Returns a number of tiles that suffices for any grouping.
  ACCORD_ON_DEVICE std::int64_t tile_count() const { return tiles_before(choices, experts); }

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    auto* const counts = reinterpret_cast<std::int32_t*>(block.shared());
    const std::int64_t each = (choices + block.threads() - 1) / block.threads();
    const std::int64_t begin = block.thread() * each, end = begin + each < choices ? begin + each : choices;
    for (std::int64_t expert = block.block(); expert < experts; expert += block.blocks()) {
      std::int64_t below = 0, mine = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t own = own_expert(i);
        below += own >= 0 && own < expert;
        mine += own == expert;
      }
      counts[block.thread()] = static_cast<std::int32_t>(mine);
      const std::int64_t first = block.block_sum(below), count = block.block_sum(mine);
      std::int64_t place = first;
      for (int thread = 0; thread < block.thread() && thread * each < choices; ++thread) place += counts[thread];
      for (std::int64_t i = begin; i < end; ++i) {
        if (own_expert(i) != expert) continue;
        tokens[place] = i / top_k;
        places[i] = place++;
      }
      const std::int64_t to = tiles_before(first, expert);
      const std::int64_t tiles_end = expert + 1 == experts ? tile_count() : tiles_before(first + count, expert + 1);
      for (std::int64_t tile = to + block.thread(); tile < tiles_end; tile += block.threads()) {
        const std::int64_t at = (tile - to) * tile_rows, left = at < count ? count - at : 0;
        tiles[tile] = {first + at, static_cast<std::int32_t>(expert),
                       static_cast<std::int32_t>(left < tile_rows ? left : tile_rows)};
      }
      if (expert + 1 == experts) {
        for (std::int64_t i = first + count + block.thread(); i < choices; i += block.threads())
          tokens[i] = choices / top_k;
      }
      if (expert == 0) mark_skipped(block, begin, end);
      block.sync();  // the next expert reuses the counts
    }
  }

 private:
  /// Returns where the tiles of `expert` begin if `rows` rows come before its own. No block knows the tiles of the
  /// others, so each expert has room for a last tile that is not full, and some tiles stay empty. There are never
  /// more tiles than rows.
  ACCORD_ON_DEVICE std::int64_t tiles_before(std::int64_t rows, std::int64_t expert) const {
    const std::int64_t whole = rows / tile_rows + expert;
    return rows < whole ? rows : whole;
  }
  /// Returns the expert of choice i, counted among this rank's experts; -1 if another rank has it.
  ACCORD_ON_DEVICE std::int64_t own_expert(std::int64_t i) const {
    const std::int64_t id = device::load_integer(ids, id_dtype, i);
    return id >= first_expert && id < first_expert + experts ? id - first_expert : -1;
  }
  template <typename Block>
  ACCORD_ON_DEVICE void mark_skipped(Block& block, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t i = begin; i < end; ++i) {
      if (own_expert(i) >= 0) continue;
      places[i] = -1;
      const std::int64_t id = device::load_integer(ids, id_dtype, i);
      if (id < 0 || id >= total_experts) report.report(block, Fault::kId, id, i, total_experts);
    }
  }
};

/// Multiplies the rows of each expert by its weights [n, k], tile by tile.
struct ExpertProduct {
  const ExpertTile* tiles = nullptr;
  std::int64_t tile_count = 0;
  std::int64_t weight_bytes = 0;  ///< of one expert's weight, and of its gate
  std::int64_t y_row_bytes = 0;
  /// All fields except m hold for all rows and experts: x and y begin at the first sorted row, weight and gate at the
  /// first expert.
  ProductCall call;
};

/// Tiles have at most kRows rows: 1, 2, 4 or 8. A weight is read once for all rows of a tile.
template <int kRows, WeightKind kWeights>
struct ExpertsFewRows : ExpertProduct {
  static constexpr bool kFloat8 = kWeights == WeightKind::kFloat8;
  static constexpr const char* kName =
      kRows == 1   ? (kFloat8 ? "engine_float8_experts_1_row" : "engine_experts_1_row")
      : kRows == 2 ? (kFloat8 ? "engine_float8_experts_2_rows" : "engine_experts_2_rows")
      : kRows == 4 ? (kFloat8 ? "engine_float8_experts_4_rows" : "engine_experts_4_rows")
                   : (kFloat8 ? "engine_float8_experts_8_rows" : "engine_experts_8_rows");
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const auto lanes = static_cast<std::size_t>(block.lanes());
    const auto outputs = static_cast<std::size_t>(call.n);
    for (std::size_t work = block.first() / lanes; work < static_cast<std::size_t>(tile_count) * outputs;
         work += block.stride() / lanes) {
      const ExpertTile tile = tiles[work / outputs];
      if (tile.rows == 0) continue;
      ProductCall product = call;
      product.m = tile.rows;
      product.x += tile.first * call.x_row_bytes;
      product.weight.data += tile.expert * weight_bytes;
      if (call.gate.data != nullptr) product.gate.data += tile.expert * weight_bytes;
      if constexpr (kFloat8) {
        const std::int64_t scales = tile.expert * call.n * call.weight.groups(call.k);
        product.weight.scales += scales;
        if (call.gate.data != nullptr) product.gate.scales += scales;
      }
      product.y = static_cast<std::byte*>(call.y) + tile.first * y_row_bytes;
      FewRows<kRows, kWeights>::compute(block, product, static_cast<std::int64_t>(work % outputs));
    }
  }
};

/// inner = what options make of the results of up and gate, for the rows of this rank's experts
/// (kernels/expert_gate.hpp).
struct GateChoices {
  static constexpr const char* kName = "engine_gate_choices";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;
  std::int64_t choices = 0, width = 0, first_expert = 0;
  const void* ids = nullptr;  ///< [choices]
  DType id_dtype = DType::kInt64;
  const std::int64_t* places = nullptr;  ///< [choices], as in GroupChoices
  kernels::GateOptions options;
  const float *up_bias = nullptr, *gate_bias = nullptr;  ///< [experts, width], or null
  const float* up = nullptr;                             ///< [choices, width], sorted
  const float* gate = nullptr;                           ///< [choices, width], sorted, or null
  void* inner = nullptr;                                 ///< [choices, width], sorted
  DType inner_dtype = DType::kFloat32;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const auto count = static_cast<std::size_t>(choices * width);
    for (std::size_t i = block.first(); i < count; i += block.stride()) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t choice = at / width, column = at % width, place = places[choice];
      if (place < 0) continue;
      const std::int64_t of_bias = (device::load_integer(ids, id_dtype, choice) - first_expert) * width + column;
      const std::int64_t value = place * width + column;
      float first = up[value] + (up_bias == nullptr ? 0.0F : up_bias[of_bias]), second = 0.0F;
      if (gate != nullptr) second = gate[value] + (gate_bias == nullptr ? 0.0F : gate_bias[of_bias]);
      device::store_float(inner, inner_dtype, value, inner_value(first, second));
    }
  }

 private:
  ACCORD_ON_DEVICE float inner_value(float first, float second) const {
    const float limit = options.limit;
    if (limit > 0.0F) {
      if (second > limit) second = limit;
      if (first > limit) first = limit;
      if (first < -limit) first = -limit;
    }
    first += options.offset;
    if (gate == nullptr) return activated(options.activation, first);
    return activated(options.activation, options.alpha * second) / options.alpha * first;
  }
};

/// y[row] = sum over j of weights[row, j] * results[places[row, j]], added in the order of j and rounded once. Choices
/// without a place are skipped.
struct CombineChoices {
  static constexpr const char* kName = "engine_combine_choices";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;
  std::int64_t rows = 0, top_k = 0, width = 0;
  const float* weights = nullptr;        ///< [rows, top_k]; null: all are 1
  const std::int64_t* places = nullptr;  ///< [rows, top_k]
  const float* results = nullptr;        ///< [choices, width]
  void* y = nullptr;                     ///< [rows, width]
  DType y_dtype = DType::kFloat32;
  bool adds = false;  ///< to the values that y has

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    const auto count = static_cast<std::size_t>(rows * width);
    for (std::size_t i = block.first(); i < count; i += block.stride()) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t row = at / width, column = at % width;
      float sum = adds ? device::load_float(y, y_dtype, at) : 0.0F;
      for (std::int64_t j = row * top_k; j < (row + 1) * top_k; ++j) {
        const float weight = weights == nullptr ? 1.0F : weights[j];
        if (places[j] >= 0) sum = multiply_add(weight, results[places[j] * width + column], sum);
      }
      device::store_float(y, y_dtype, at, sum);
    }
  }
};

}  // namespace accord::engine
