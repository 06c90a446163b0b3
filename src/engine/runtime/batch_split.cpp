// The parts are as equal as possible and follow the order of the ranks, so one gather of unequal parts yields the
// whole output.
#include "engine/runtime/batch_split.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accord::engine {
namespace {

bool mentions(const SymbolicInt& size, const std::string& symbol) {
  return std::any_of(size.terms().begin(), size.terms().end(), [&](const SymbolicInt::Term& term) {
    return std::find(term.symbols.begin(), term.symbols.end(), symbol) != term.symbols.end();
  });
}

bool begins_with(const Value& value, const SymbolicInt& symbol) {
  return !value.shape.empty() && value.shape.front() == symbol;
}

// Returns rows [first, last) of a tensor.
TensorView rows_of(const TensorView& tensor, std::int64_t first, std::int64_t last) {
  TensorView rows = tensor;
  const std::int64_t all = tensor.shape.front();
  const auto row = all == 0 ? 0 : static_cast<std::int64_t>(tensor.buffer.count) / all;
  rows.buffer.data = static_cast<std::byte*>(tensor.buffer.data) +
                     first * row * static_cast<std::int64_t>(size_of(tensor.buffer.dtype));
  rows.buffer.count = static_cast<std::size_t>((last - first) * row);
  rows.shape.front() = last - first;
  return rows;
}

}  // namespace

Result<BatchSplit> find_batch_split(const Graph& graph, const GroupPlace& place) {
  for (const Symbol& symbol : graph.symbols) {
    BatchSplit split{symbol.name, symbol.min, symbol.max, {}, place};
    ACCORD_ASSIGN_OR_RETURN(const SymbolicInt size, SymbolicInt::parse(symbol.name));
    for (const ValueId input : graph.inputs) {
      split.cut.push_back(begins_with(graph.values[static_cast<std::size_t>(input)], size));
    }
    const bool of_all_outputs = std::all_of(graph.outputs.begin(), graph.outputs.end(), [&](ValueId output) {
      const Value& value = graph.values[static_cast<std::size_t>(output)];
      return begins_with(value, size) &&
             std::none_of(value.shape.begin() + 1, value.shape.end(),
                          [&](const SymbolicInt& other) { return mentions(other, symbol.name); });
    });
    if (of_all_outputs && std::find(split.cut.begin(), split.cut.end(), true) != split.cut.end()) return split;
  }
  return Status(StatusCode::kUnsupported,
                fmt::format("group \"{}\" divides a batch, but the outputs of this model do not all begin with one "
                            "dynamic dimension of an input",
                            kBatchGroup));
}

Result<BatchPart> batch_part(const BatchSplit& split, std::int64_t rows, Rank rank) {
  const int size = split.place.size;
  const std::int64_t largest = (rows + size - 1) / size;
  if (rows < split.min || largest > split.max) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a batch of {} rows cannot be divided among the {} ranks of group \"{}\": dimension "
                              "\"{}\" of each rank must be {} to {}",
                              rows, size, kBatchGroup, split.symbol, split.min, split.max));
  }
  const std::int64_t base = rows / size, remainder = rows % size;
  const std::int64_t begin = rank * base + std::min<std::int64_t>(rank, remainder);
  BatchPart part;
  part.share = base + (rank < remainder ? 1 : 0);
  part.count = std::max(part.share, split.min);
  part.first = std::min(begin, rows - part.count);
  part.skip = begin - part.first;
  return part;
}

Result<std::int64_t> batch_rows(const BatchSplit& split, const Graph& graph, std::span<const TensorView> inputs) {
  std::int64_t rows = -1;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!split.cut[i]) continue;
    const std::int64_t here = inputs[i].shape.front();
    if (rows == -1) rows = here;
    if (rows == here) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("input \"{}\": dimension 0 (\"{}\") is {}, but {} in an earlier input",
                              graph.values[static_cast<std::size_t>(graph.inputs[i])].name, split.symbol, here, rows));
  }
  return rows;
}

std::vector<TensorView> inputs_of_part(const BatchSplit& split, const BatchPart& part,
                                       std::span<const TensorView> inputs) {
  std::vector<TensorView> parts(inputs.begin(), inputs.end());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (split.cut[i]) parts[i] = rows_of(parts[i], part.first, part.first + part.count);
  }
  return parts;
}

Result<std::vector<TensorView>> BatchOutputs::gather(const BatchSplit& split, std::int64_t rows,
                                                     const std::vector<TensorView>& outputs,
                                                     Communicator communicator) {
  std::vector<std::int64_t> shares;
  for (Rank rank = 0; rank < split.place.size; ++rank) {
    ACCORD_ASSIGN_OR_RETURN(const BatchPart part, batch_part(split, rows, rank));
    shares.push_back(part.share);
  }
  ACCORD_ASSIGN_OR_RETURN(const BatchPart mine, batch_part(split, rows, split.place.rank));
  memory_.resize(outputs.size());
  std::vector<TensorView> whole;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorView own = rows_of(outputs[i], mine.skip, mine.skip + mine.share);
    const std::size_t row = outputs[i].buffer.count / static_cast<std::size_t>(mine.count);
    std::vector<std::size_t> counts;
    counts.reserve(shares.size());
    for (const std::int64_t share : shares) counts.push_back(static_cast<std::size_t>(share) * row);
    TensorView all = outputs[i];
    all.shape.front() = rows;
    all.buffer.count = static_cast<std::size_t>(rows) * row;
    memory_[i].resize(std::max(memory_[i].size(), all.buffer.bytes()));
    all.buffer.data = memory_[i].data();
    ACCORD_RETURN_IF_ERROR(communicator.all_gather_v(ConstBuffer(own.buffer), all.buffer, counts));
    whole.push_back(std::move(all));
  }
  return whole;
}

}  // namespace accord::engine
