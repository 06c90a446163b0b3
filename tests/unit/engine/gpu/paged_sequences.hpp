#pragma once
// Sequences in a paged cache, for kernels by themselves, and the attention over them by its formula.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "engine/gpu/kernels/attention_kernels.hpp"
#include "unit/engine/gpu/blocks.hpp"
#include "unit/engine/gpu/engines.hpp"

namespace accord::testing {

/// Memory aligned like a device's, all NaN.
class NaNs {
 public:
  explicit NaNs(std::size_t bytes = 0) : words_(bytes / sizeof(device::Words) + 1) {
    std::memset(words_.data(), 0xFF, words_.size() * sizeof(device::Words));
  }
  void* data() { return words_.data(); }
  const void* data() const { return words_.data(); }
  const std::vector<device::Words>& words() const { return words_; }

 private:
  std::vector<device::Words> words_;
};

struct PagedCase {
  struct Sequence {
    std::int64_t rows = 1, context = 0;
    unsigned seed = 5;  ///< for its numbers
  };
  std::int64_t heads = 1, kv_heads = 1, head_dim = 8, value_dim = 8, block_tokens = 16;
  std::vector<Sequence> sequences = {};
  std::int64_t window = 0;
  float softcap = 0.0F;
  int splits = 1;  ///< parts of a context
  DType cache = DType::kFloat32;
  DType queries = DType::kFloat32;  ///< and of the output
  BlockSize size = {};
  std::int64_t chunk = 0;
};

/// Returns a case with sequences of one row each, whose contexts are `tokens`.
inline PagedCase single_rows(const std::vector<std::int64_t>& tokens, PagedCase of) {
  for (const std::int64_t token : tokens) of.sequences.push_back({1, token});
  return of;
}

/// A cache whose blocks are in random order, and queries. Memory to which no token was written is NaN.
class PagedSequences {
 public:
  explicit PagedSequences(const PagedCase& of) : of_(of) {
    std::int64_t blocks = 0;
    for (const PagedCase::Sequence& sequence : of.sequences)
      blocks += (sequence.context + sequence.rows - 1) / of.block_tokens + 1;
    tables_.resize(count(blocks));
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(4));
    const std::int64_t cached = blocks * of.block_tokens * of.kv_heads;
    keys_ = NaNs(count(cached * of.head_dim) * size_of(of.cache));
    values_ = NaNs(count(cached * of.value_dim) * size_of(of.cache));
    key_scales_.assign(count(cached), NAN);
    value_scales_ = key_scales_;
    cache_ = {keys_.data(), values_.data(), of.cache,           of.block_tokens,     of.kv_heads,
              of.head_dim,  of.value_dim,   key_scales_.data(), value_scales_.data()};
    for (const PagedCase::Sequence& sequence : of.sequences) rows_ += sequence.rows;
    queries_ = NaNs(count(rows_ * of.heads * of.head_dim) * size_of(of.queries));
    std::int32_t table = 0;
    for (const PagedCase::Sequence& sequence : of.sequences) {
      fill(sequence, table);
      table += static_cast<std::int32_t>((sequence.context + sequence.rows - 1) / of.block_tokens + 1);
    }
  }

  /// These put a NaN into a key or a value of the first sequence.
  void spoil_key(std::int64_t token, std::int64_t head) {
    const std::int64_t row = cache_.row_of(tables_.data() + places_[0].table, head, token);
    device::store_float(cache_.keys, of_.cache, row * of_.head_dim, NAN);
  }
  void spoil_value(std::int64_t token, std::int64_t head) {
    const std::int64_t row = cache_.row_of(tables_.data() + places_[0].table, head, token);
    device::store_float(cache_.values, of_.cache, row * of_.value_dim, NAN);
  }

  /// Returns what `run` computes for the call, in which all rows count as few; NaN where it writes nothing.
  template <typename Run>
  std::vector<float> by(const Run& run) {
    NaNs output(numbers() * size_of(of_.queries)), partial(partial_bytes());
    std::vector<std::uint64_t> arrived = no_arrivals();
    engine::PagedCall call = call_of_all();
    call.q.data = queries_.data();
    call.output.data = output.data();
    call.partial = static_cast<float*>(partial.data());
    call.arrived = arrived.data();
    run(call);
    EXPECT_EQ(arrived, no_arrivals()) << "the next launch would not find zeros";
    return floats_in(output.data());
  }
  /// Does the same with everything in a device's memory.
  template <typename Run>
  std::vector<float> by(const OnDevice& on, const Run& run) {
    const DeviceArray keys(on, keys_.words(), DType::kUInt8), values(on, values_.words(), DType::kUInt8);
    const DeviceArray key_scales(on, key_scales_, DType::kFloat32), value_scales(on, value_scales_, DType::kFloat32);
    const DeviceArray places(on, places_, DType::kUInt8), tables(on, tables_, DType::kInt32);
    const DeviceArray queries(on, queries_.words(), DType::kUInt8);
    const DeviceArray output(on, NaNs(numbers() * size_of(of_.queries)).words(), DType::kUInt8);
    const DeviceArray partial(on, NaNs(partial_bytes()).words(), DType::kUInt8);
    const DeviceArray arrived(on, no_arrivals(), DType::kUInt64), sequences(on, sequences_, DType::kInt32);
    engine::PagedCall call = call_of_all();
    call.cache.keys = keys.buffer().data;
    call.cache.values = values.buffer().data;
    call.cache.key_scales = static_cast<float*>(key_scales.buffer().data);
    call.cache.value_scales = static_cast<float*>(value_scales.buffer().data);
    call.batch = {static_cast<const engine::RowPlace*>(places.buffer().data),
                  static_cast<const std::int32_t*>(tables.buffer().data),
                  static_cast<const std::int32_t*>(sequences.buffer().data)};
    call.q.data = queries.buffer().data;
    call.output.data = output.buffer().data;
    call.partial = static_cast<float*>(partial.buffer().data);
    call.arrived = static_cast<std::uint64_t*>(arrived.buffer().data);
    run(call);
    EXPECT_EQ(arrived.values<std::uint64_t>(), no_arrivals()) << "the next launch would not find zeros";
    return floats_in(output.bytes().data());
  }

  std::vector<float> by_formula() const {
    std::vector<float> output;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const engine::RowPlace place = places_[count(row)];
      const std::int64_t of_window = of_.window > 0 ? std::max<std::int64_t>(place.token + 1 - of_.window, 0) : 0;
      const std::int64_t first = std::max(of_window, of_.chunk > 0 ? place.token - place.token % of_.chunk : 0);
      for (std::int64_t head = 0; head < of_.heads; ++head) {
        std::vector<double> sums(count(of_.value_dim));
        double total = 0.0;
        for (std::int64_t token = first; token <= place.token; ++token) {
          const std::int64_t at = cache_.row_of(tables_.data() + place.table, head / (of_.heads / of_.kv_heads), token);
          double score = 0.0;
          for (std::int64_t d = 0; d < of_.head_dim; ++d)
            score += number(queries_.data(), of_.queries, (row * of_.heads + head) * of_.head_dim + d) *
                     cached(cache_.keys, key_scales_, at, at * of_.head_dim + d);
          score *= static_cast<double>(kScale);
          const auto cap = static_cast<double>(of_.softcap);
          const double weight = std::exp(cap > 0.0 ? cap * std::tanh(score / cap) : score);
          total += weight;
          for (std::int64_t d = 0; d < of_.value_dim; ++d)
            sums[count(d)] += weight * cached(cache_.values, value_scales_, at, at * of_.value_dim + d);
        }
        for (const double sum : sums) output.push_back(static_cast<float>(sum / total));
      }
    }
    return output;
  }

 private:
  static constexpr float kScale = 0.3F;
  static std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::size_t numbers() const { return count(rows_ * of_.heads * of_.value_dim); }
  // As much as any kernel uses: one that has up to 16 queries in a block has room for all of them, and takes up to 16
  // tiles of a sequence, each with one part more than its share of those of all rows.
  std::size_t partial_bytes() const {
    const std::int64_t queries = rows_ * of_.kv_heads * ((of_.heads / of_.kv_heads + 15) / 16 * 16);
    const int floats = engine::PartResults::floats(static_cast<int>(of_.value_dim));
    return count(queries * (of_.splits + 16) * floats) * sizeof(float);
  }
  std::vector<std::uint64_t> no_arrivals() const {
    return std::vector<std::uint64_t>(count(rows_ * of_.heads * of_.splits));
  }

  // The call without its queries and its output.
  engine::PagedCall call_of_all() const {
    engine::PagedCall call;
    call.cache = cache_;
    call.batch = {places_.data(), tables_.data(), sequences_.data()};
    call.rows = rows_;
    call.heads = of_.heads;
    call.window = of_.window;
    call.chunk = of_.chunk;
    call.scale = kScale;
    call.softcap = of_.softcap;
    call.q = {nullptr, of_.queries, of_.heads * of_.head_dim, of_.head_dim};
    call.output = {nullptr, of_.queries, of_.heads * of_.value_dim, of_.value_dim};
    call.few_rows = static_cast<int>(rows_);
    call.has_single_rows = rows_ == static_cast<std::int64_t>(of_.sequences.size());
    call.parts_of_one = of_.splits * static_cast<int>(rows_);
    call.most_parts = of_.splits;
    return call;
  }
  std::vector<float> floats_in(const void* output) const {
    std::vector<float> found;
    for (std::size_t i = 0; i < numbers(); ++i)
      found.push_back(device::load_float(output, of_.queries, static_cast<std::int64_t>(i)));
    return found;
  }

  static double number(const void* data, DType dtype, std::int64_t index) {
    return static_cast<double>(device::load_float(data, dtype, index));
  }

  double cached(const void* data, const std::vector<float>& scales, std::int64_t row, std::int64_t index) const {
    if (of_.cache != DType::kInt8) return number(data, of_.cache, index);
    return static_cast<const std::int8_t*>(data)[index] * static_cast<double>(scales[count(row)]);
  }

  void fill(const PagedCase::Sequence& sequence, std::int32_t table) {
    std::mt19937 random(sequence.seed);
    std::uniform_real_distribution<float> numbers(-2.0F, 2.0F);
    const auto write = [&](void* to, DType dtype, std::int64_t row, std::int64_t dim) {
      for (std::int64_t d = 0; d < dim; ++d) {
        const float x = numbers(random);
        if (dtype != DType::kInt8) device::store_float(to, dtype, row * dim + d, x);
        if (dtype == DType::kInt8) static_cast<std::int8_t*>(to)[row * dim + d] = static_cast<std::int8_t>(x * 63.0F);
      }
    };
    for (std::int64_t token = 0; token < sequence.context + sequence.rows; ++token) {
      for (std::int64_t head = 0; head < of_.kv_heads; ++head) {
        const std::int64_t row = cache_.row_of(tables_.data() + table, head, token);
        key_scales_[count(row)] = (numbers(random) + 2.5F) / 127.0F;
        value_scales_[count(row)] = (numbers(random) + 2.5F) / 127.0F;
        write(cache_.keys, of_.cache, row, of_.head_dim);
        write(cache_.values, of_.cache, row, of_.value_dim);
      }
    }
    sequences_.push_back(static_cast<std::int32_t>(places_.size()));
    ++sequences_[0];
    for (std::int64_t row = 0; row < sequence.rows; ++row) {
      const auto its = static_cast<std::int64_t>(places_.size());
      write(queries_.data(), of_.queries, its, of_.heads * of_.head_dim);
      places_.push_back(
          {static_cast<std::int32_t>(sequence.context + row), table, static_cast<std::int32_t>(sequence.rows)});
    }
  }

  const PagedCase of_;
  std::int64_t rows_ = 0;
  NaNs queries_, keys_, values_;
  std::vector<float> key_scales_, value_scales_;
  engine::DeviceCacheLayer cache_;
  std::vector<engine::RowPlace> places_;
  std::vector<std::int32_t> tables_;
  std::vector<std::int32_t> sequences_ = {0};
};

}  // namespace accord::testing
