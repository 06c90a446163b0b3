#pragma once
// The inputs of a language model's encoder: checks a request's source before it is queued.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "accord/generation.hpp"
#include "engine/runtime/loaded_engine.hpp"

namespace accord::engine {

/// Returns the tensors as an engine takes them. They are only read.
std::vector<TensorView> views_of(std::span<const SourceTensor> source);

/// The inputs that an encoder takes as the source of a request. Immutable.
class SourceInputs {
 public:
  /// is_cached: the encoder stores keys of a source in the cache; otherwise its output has a row for each token that
  /// stands for one, and a request need not have a source. Fails with kCorrupt if the encoder does not.
  static Result<SourceInputs> create(std::shared_ptr<const LoadedEngine> encoder, bool is_cached);

  /// Rows of the longest source.
  std::int32_t max_rows() const { return max_rows_; }
  /// Returns how many rows the encoder makes of `source`. Fails with kInvalidArgument, naming the input, if a tensor is
  /// missing or has another dtype or shape, or if it has an id that is not in the table that is read with it.
  Result<std::int32_t> rows(std::span<const SourceTensor> source) const;

 private:
  SourceInputs() = default;

  std::shared_ptr<const LoadedEngine> encoder_;
  SymbolicInt source_rows_;
  bool is_needed_ = true;
  std::int32_t max_rows_ = 0;
  std::map<std::size_t, std::int64_t> tables_;  // input -> rows of the table that is read with it
};

}  // namespace accord::engine
