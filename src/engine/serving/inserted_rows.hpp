#pragma once
// The rows that an encoder of images makes, for the tokens of a step that stand for them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "accord/engine.hpp"
#include "engine/serving/step_plan.hpp"

namespace accord::engine {

/// Keeps the rows of sources by slot, and gathers those of a step as two inputs of the decoder: the rows that tokens of
/// the step stand for, and for each token which of these it stands for, or -1.
class InsertedRows {
 public:
  /// token: stands for a row of a source, with `width` elements.
  InsertedRows(TokenId token, DType dtype, std::int64_t width) : token_(token), dtype_(dtype), width_(width) {}

  /// Keeps the rows of a source, [rows, width] without gaps, instead of those that were in the slot.
  void keep(std::int32_t slot, const TensorView& rows);
  /// Fails with kInternal if a sequence's source is not in its slot. The views are valid until the next call.
  Status gather(const StepPlan& plan);
  /// [1 or more, width]
  TensorView rows();
  /// [tokens], int64
  TensorView indices();

 private:
  std::size_t row_bytes() const { return static_cast<std::size_t>(width_) * size_of(dtype_); }

  TokenId token_;
  DType dtype_;
  std::int64_t width_;
  std::vector<std::vector<std::byte>> slots_;
  std::vector<std::byte> rows_;
  std::vector<std::int64_t> indices_;
};

}  // namespace accord::engine
