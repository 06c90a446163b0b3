#include "engine/serving/inserted_rows.hpp"

#include <fmt/format.h>

namespace accord::engine {

void InsertedRows::keep(std::int32_t slot, const TensorView& rows) {
  const auto index = static_cast<std::size_t>(slot);
  if (slots_.size() <= index) slots_.resize(index + 1);
  const auto* const data = static_cast<const std::byte*>(rows.buffer.data);
  slots_[index].assign(data, data + rows.buffer.bytes());
}

Status InsertedRows::gather(const StepPlan& plan) {
  rows_.clear();
  indices_.assign(plan.tokens.size(), -1);
  std::int64_t gathered = 0;
  for (const PlannedSequence& sequence : plan.sequences) {
    if (sequence.source_slot == PlannedSequence::kNoSlot) continue;
    const auto slot = static_cast<std::size_t>(sequence.source_slot);
    const std::size_t bytes = static_cast<std::size_t>(sequence.source_rows) * row_bytes();
    if (slot >= slots_.size() || slots_[slot].size() != bytes) {
      return Status(StatusCode::kInternal, fmt::format("slot {} does not have the {} rows of its sequence's source",
                                                       slot, sequence.source_rows));
    }
    const std::byte* next = slots_[slot].data() + static_cast<std::size_t>(sequence.first_source_row) * row_bytes();
    const std::byte* const end = slots_[slot].data() + bytes;
    for (std::int32_t row = sequence.first_row; row < sequence.first_row + sequence.rows; ++row) {
      if (next == end || plan.tokens[static_cast<std::size_t>(row)] != token_) continue;
      indices_[static_cast<std::size_t>(row)] = gathered++;
      rows_.insert(rows_.end(), next, next + row_bytes());
      next += row_bytes();
    }
  }
  if (gathered == 0) rows_.resize(row_bytes());  // a graph takes at least one row
  return Status();
}

TensorView InsertedRows::rows() {
  const auto count = rows_.size() / row_bytes();
  return {{rows_.data(), rows_.size() / size_of(dtype_), dtype_, {}}, {static_cast<std::int64_t>(count), width_}};
}

TensorView InsertedRows::indices() {
  return {{indices_.data(), indices_.size(), DType::kInt64, {}}, {static_cast<std::int64_t>(indices_.size())}};
}

}  // namespace accord::engine
