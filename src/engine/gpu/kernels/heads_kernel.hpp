#pragma once
// The kernel between the products and the attention of a layer: it rotates queries and keys, and writes keys and
// values to the cache.

#include <cmath>

#include "engine/gpu/kernels/cache_kernels.hpp"
#include "engine/gpu/kernels/units.hpp"

namespace accord::engine {

/// Work on the heads of `rows` rows. All rows but those of the cache have one dtype.
struct HeadsCall {
  std::int64_t rows = 0;
  /// Rotates the heads of x into `rotated`: x cos + (-second half of x, first half of x) sin, where all heads of a row
  /// use the same row of cos and sin. 0: there is nothing to rotate.
  std::int64_t heads = 0;
  HeadRows x, rotated;
  HeadRows cos, sin;  ///< null: keys are not rotated either
  /// Writes keys, which are rotated in the same way, and values to the cache. Without keys there is no cache; without
  /// values, those of the cache are in its keys.
  HeadRows keys, values;
  DeviceCacheLayer cache;
  BatchTables batch;
  std::int64_t head_dim = 0;  ///< of x and keys

  ACCORD_ON_DEVICE std::int64_t kv_heads() const { return keys.data == nullptr ? 0 : cache.kv_heads; }
  ACCORD_ON_DEVICE std::int64_t value_dim() const { return values.data == nullptr ? 0 : cache.value_dim; }
  /// Rows that a key head has in the cache: its key, and its value if there are values.
  ACCORD_ON_DEVICE std::int64_t cached_each() const { return values.data == nullptr ? 1 : 2; }
};

/// A few neighboring lanes of a warp, a team, compute a head together. A lane takes units of both halves of the head,
/// which the rotation combines. An int8 row gets the codes and the scale that kernels::PagedCache describes.
template <DType kDType>
struct HeadsWork : HeadsCall {
  /// Whether all rows consist of Words.
  ACCORD_ON_DEVICE bool has_words() const {
    constexpr std::int64_t kEach = kElementsOfWords<kDType>;
    WordCheck<kDType> check;
    check.address(x.data).elements(x.row_stride).elements(x.head_stride);
    check.address(rotated.data).elements(rotated.row_stride).elements(rotated.head_stride);
    check.address(cos.data).elements(cos.row_stride).address(sin.data).elements(sin.row_stride);
    check.address(keys.data).elements(keys.row_stride).elements(keys.head_stride);
    check.address(values.data).elements(values.row_stride).elements(values.head_stride);
    return check.holds() && head_dim % (rotates() ? 2 * kEach : kEach) == 0 && value_dim() % kEach == 0;
  }
  ACCORD_ON_DEVICE bool rotates() const { return cos.data != nullptr; }

  /// Computes all heads of all rows, in all blocks.
  template <typename Unit, typename Block>
  ACCORD_ON_DEVICE void compute_all(Block& block) const {
    const Team team = team_of<Unit>(block);
    const std::int64_t per_row = heads + cached_each() * kv_heads(), all = rows * per_row;
    const auto warps = static_cast<std::int64_t>(block.stride()) / block.lanes();
    const auto warp = static_cast<std::int64_t>(block.first()) / block.lanes();
    for (std::int64_t first = warp * team.count; first < all; first += warps * team.count) {
      std::int64_t row = first + team.number;
      const bool is_active = team.number < team.count && row < all;
      const std::int64_t head = take_last(row, per_row);
      compute<Unit>(block, is_active ? head_of(row, head) : Head{}, team);
    }
  }

  /// Writes one key and one value of a row to the cache. All lanes of one warp call it. REQUIRES: has_words().
  template <typename Block>
  ACCORD_ON_DEVICE void append(Block& block, std::int64_t row, std::int64_t kv_head) const {
    using Unit = WordUnit<kDType>;
    const Team team = team_of<Unit>(block);
    const auto count = static_cast<int>(cached_each());
    for (int first = 0; first < count; first += team.count) {
      const int which = first + team.number;
      const bool is_active = team.number < team.count && which < count;
      compute<Unit>(block, is_active ? head_of(row, heads + which * kv_heads() + kv_head) : Head{}, team);
    }
  }

  /// Calls store(d, words) for the Words of one rotated query that begin at the elements d: the `unit`-th of each half
  /// of the head. REQUIRES: has_words(), and there is something to rotate.
  template <typename Store>
  ACCORD_ON_DEVICE void rotate_query(std::int64_t row, std::int64_t head, int unit, const Store& store) const {
    using Unit = WordUnit<kDType>;
    const Team team{.number = 0, .count = 1, .lane = unit, .lanes = static_cast<int>(head_dim / (2 * Unit::kCount))};
    for_pairs<Unit>(head_of(row, head), team,
                    [&](std::int64_t d, const float(&elements)[Unit::kCount]) { store(d, Unit::stored(elements)); });
  }

 private:
  enum class Kind : std::uint8_t { kNone, kQuery, kKey, kValue };
  /// One head of a row.
  struct Head {
    Kind kind = Kind::kNone;
    std::int64_t row = 0, head = 0;
    std::int64_t dim = 0;
    const void* data = nullptr;
    std::int64_t first = 0;  ///< the first of its elements in `data`
  };

  /// The lanes that compute a head together.
  struct Team {
    int number, count;  ///< in this warp; lanes that are left over have the number `count`
    int lane, lanes;    ///< in the team
  };
  template <typename Unit, typename Block>
  ACCORD_ON_DEVICE Team team_of(Block& block) const {
    const std::int64_t longest = head_dim > value_dim() ? head_dim : value_dim();
    const auto pairs = static_cast<int>((longest / Unit::kCount + 1) / 2);
    int lanes = 1;
    while (lanes < pairs && 2 * lanes <= block.lanes()) lanes *= 2;
    const int count = block.lanes() / lanes, number = block.lane() / lanes;
    return {number < count ? number : count, count, block.lane() % lanes, lanes};
  }

  /// All lanes of the warp must call it.
  template <typename Unit, typename Block>
  ACCORD_ON_DEVICE void compute(Block& block, const Head& mine, const Team& team) const {
    if (cache.dtype == DType::kInt8) return write_codes<Unit>(block, mine, team);
    const bool is_cached = mine.kind == Kind::kKey || mine.kind == Kind::kValue;
    const std::int64_t to = is_cached ? row_in_cache(mine) : 0;
    for_pairs<Unit>(mine, team,
                    [&](std::int64_t d, const float(&elements)[Unit::kCount]) { write<Unit>(mine, to, d, elements); });
  }

  ACCORD_ON_DEVICE Head head_of(std::int64_t row, std::int64_t head) const {
    const auto of = [&](Kind kind, std::int64_t its_head, std::int64_t dim, const HeadRows& from) {
      return Head{kind, row, its_head, dim, from.data, row * from.row_stride + its_head * from.head_stride};
    };
    if (head < heads) return of(Kind::kQuery, head, head_dim, x);
    head -= heads;
    if (head < kv_heads()) return of(Kind::kKey, head, head_dim, keys);
    return of(Kind::kValue, head - kv_heads(), value_dim(), values);
  }

  ACCORD_ON_DEVICE std::int64_t row_in_cache(const Head& of) const {
    const RowPlace place = batch.rows[of.row];
    return cache.row_of(batch.tables + place.table, of.head, place.token);
  }

  /// Calls body(d, elements) for the units of this lane, rounded to kDType. `d`: the first of the elements.
  template <typename Unit, typename Body>
  ACCORD_ON_DEVICE void for_pairs(const Head& of, const Team& team, const Body& body) const {
    const auto units = static_cast<int>(of.dim / Unit::kCount), half = (units + 1) / 2;
    const auto* const from = units_at<Unit>(of.data, of.first);
    const bool is_rotated = rotates() && of.kind != Kind::kValue;
    for (int unit = team.lane; unit < half; unit += team.lanes) {
      const bool has_second = unit + half < units;
      float first[Unit::kCount], second[Unit::kCount];
      Unit::load(from[unit], first);
      Unit::load(from[has_second ? unit + half : unit], second);
      if (is_rotated) rotate<Unit>(of.row, unit, half, first, second);
      body(std::int64_t{unit} * Unit::kCount, first);
      if (has_second) body(std::int64_t{unit + half} * Unit::kCount, second);
    }
  }

  template <typename Unit>
  ACCORD_ON_DEVICE void rotate(std::int64_t row, int unit, int half, float (&first)[Unit::kCount],
                               float (&second)[Unit::kCount]) const {
    const auto* const cosines = units_at<Unit>(cos.data, row * cos.row_stride);
    const auto* const sines = units_at<Unit>(sin.data, row * sin.row_stride);
    const typename Unit::Stored stored[] = {cosines[unit], sines[unit], cosines[unit + half], sines[unit + half]};
    float factors[4][Unit::kCount];
    ACCORD_UNROLLED
    for (int i = 0; i < 4; ++i) Unit::load(stored[i], factors[i]);
    ACCORD_UNROLLED
    for (int i = 0; i < Unit::kCount; ++i) {
      const float before = first[i], after = second[i];
      first[i] = before * factors[0][i] - after * factors[1][i];
      second[i] = after * factors[2][i] + before * factors[3][i];
    }
    round_to_unit<Unit>(first);
    round_to_unit<Unit>(second);
  }

  template <typename Unit>
  ACCORD_ON_DEVICE void write(const Head& of, std::int64_t to, std::int64_t d,
                              const float (&elements)[Unit::kCount]) const {
    if (of.kind == Kind::kQuery) {
      const std::int64_t first = of.row * rotated.row_stride + of.head * rotated.head_stride;
      *units_at<Unit>(rotated.data, first + d) = Unit::stored(elements);
    } else {
      void* const rows_of_cache = of.kind == Kind::kValue ? cache.values : cache.keys;
      store_elements(rows_of_cache, to * of.dim + d, elements);
    }
  }

  /// Stores elements in the cache's dtype, aligned as they are in the rows.
  template <int kCount>
  ACCORD_ON_DEVICE void store_elements(void* data, std::int64_t index, const float (&elements)[kCount]) const {
    if constexpr (kCount == 1) {
      device::store_float(data, cache.dtype, index, elements[0]);
    } else if (cache.dtype == DType::kFloat32) {
      ACCORD_UNROLLED
      for (int i = 0; i < kCount; i += 4) {
        const float part[4] = {elements[i], elements[i + 1], elements[i + 2], elements[i + 3]};
        *units_at<WordUnit<DType::kFloat32>>(data, index + i) = WordUnit<DType::kFloat32>::stored(part);
      }
    } else {
      struct alignas(2 * kCount) Pairs {
        std::uint32_t of[kCount / 2];
      } pairs;
      ACCORD_UNROLLED
      for (int i = 0; i < kCount / 2; ++i)
        pairs.of[i] = word_of_pair<DType::kBFloat16>(elements[2 * i], elements[2 * i + 1]);
      static_cast<Pairs*>(data)[index / kCount] = pairs;
    }
  }

  /// Rounds as the CPU does. All lanes of the warp must call it.
  template <typename Unit, typename Block>
  ACCORD_ON_DEVICE void write_codes(Block& block, const Head& of, const Team& team) const {
    float largest = 0.0F;
    for_pairs<Unit>(of, team, [&](std::int64_t d, const float(&elements)[Unit::kCount]) {
      if (of.kind == Kind::kQuery) return write<Unit>(of, 0, d, elements);
      ACCORD_UNROLLED
      for (int i = 0; i < Unit::kCount; ++i) {
        const float size = fabsf(elements[i]);
        largest = fmaxf(largest, size < INFINITY ? size : INFINITY);  // NaN counts as infinity
      }
    });
    const int team_begin = block.lane() - team.lane;
    for (int distance = team.lanes / 2; distance > 0; distance /= 2) {
      const int other = team_begin + (team.lane ^ distance);
      largest = fmaxf(largest, block.from_lane(largest, other < block.lanes() ? other : block.lane()));
    }
    if (of.kind == Kind::kNone || of.kind == Kind::kQuery) return;
    const bool is_value = of.kind == Kind::kValue;
    const float scale = largest < INFINITY ? largest / 127.0F : NAN;
    const std::int64_t to = row_in_cache(of);
    auto* const codes = static_cast<std::int8_t*>(is_value ? cache.values : cache.keys) + to * of.dim;
    for_pairs<Unit>(of, team, [&](std::int64_t d, const float(&elements)[Unit::kCount]) {
      std::uint32_t packed[(Unit::kCount + 3) / 4] = {};
      ACCORD_UNROLLED
      for (int i = 0; i < Unit::kCount; ++i) packed[i / 4] |= code_of(elements[i], scale) << (i % 4 * 8);
      if constexpr (Unit::kCount == 1) {
        codes[d] = static_cast<std::int8_t>(packed[0]);
      } else {
        ACCORD_UNROLLED
        for (int i = 0; i < Unit::kCount / 4; ++i) reinterpret_cast<std::uint32_t*>(codes + d)[i] = packed[i];
      }
    });
    if (team.lane == 0) (is_value ? cache.value_scales : cache.key_scales)[to] = scale;
  }

  /// The code of x in the low byte.
  ACCORD_ON_DEVICE static std::uint32_t code_of(float x, float scale) {
    if (!(scale > 0.0F)) return 0;
    // A denormal scale may be as small as half its exact value, hence the clamp.
    const auto code = static_cast<std::int32_t>(fminf(fmaxf(rintf(x / scale), -127.0F), 127.0F));
    return static_cast<std::uint32_t>(code) & 0xFF;
  }
};

/// Computes a HeadsCall.
template <DType kDType>
struct RotateAndAppend : HeadsWork<kDType> {
  static constexpr const char* kName = kDType == DType::kFloat32   ? "engine_rotate_and_append_float32"
                                       : kDType == DType::kFloat16 ? "engine_rotate_and_append_float16"
                                                                   : "engine_rotate_and_append_bfloat16";
  static constexpr int kThreads = 256;
  static constexpr bool kStartsEarly = true;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    block.await_earlier();
    block.start_next();
    if (this->has_words()) {
      this->template compute_all<WordUnit<kDType>>(block);
    } else {
      this->template compute_all<ElementUnit<kDType>>(block);
    }
  }
};

}  // namespace accord::engine
