#pragma once
// Calls that exchange rows with the ranks that have the experts chosen for them.

#include "engine/program/tensor.hpp"

namespace accord::engine {

/// Layers with equal keys can take turns with one expert group.
struct ExchangeKey {
  int group = 0;  ///< index of the engine's group
  int experts = 0;
  int top_k = 0;
  int hidden = 0;
  DType dtype = DType::kFloat32;
  bool operator==(const ExchangeKey&) const = default;
};

/// Sends each of this rank's rows to the ranks of the experts chosen for it. Everything is contiguous.
struct DispatchRowsCall {
  ExchangeKey key;
  Tensor tokens, ids;                  ///< [tokens, hidden], and [tokens, top_k] in int32 or int64
  Tensor weights;                      ///< [tokens, top_k] in float32
  Tensor rows, row_weights;            ///< what this rank receives, ordered by expert
  Tensor first;                        ///< int64: where the rows of each of this rank's experts start, and the end
  std::int64_t batch = 0;              ///< this rank's rows of the batch
  std::int64_t tokens_of_largest = 0;  ///< tokens of a rank that has one more row
};

/// Returns the experts' results for the rows that were dispatched last for `key`, added up for each row, to the ranks
/// of the rows.
struct CombineRowsCall {
  ExchangeKey key;
  Tensor results;  ///< contiguous
  Tensor y;
};

}  // namespace accord::engine
