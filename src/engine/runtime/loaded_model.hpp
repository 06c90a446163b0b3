#pragma once
// The parts of a package that an engine keeps: the graph that it runs, and the description of the model for users.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/package/package.hpp"
#include "engine/program/context_rows.hpp"
#include "engine/runtime/batch_split.hpp"

namespace accord::engine {

struct LoadedModel {
  /// A tensor of the package, to be compared with another package's.
  struct TensorDescription {
    std::string name;
    DType dtype = DType::kFloat32;
    std::vector<std::int64_t> shape;
    std::optional<Sharding> sharding;
  };

  std::string path;        ///< of the package; for an assembled engine, the name of its parts
  bool assembled = false;  ///< from parts, without a package
  Graph graph;             ///< this rank's part, after the passes
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> outputs;
  std::optional<LanguageModelEntry> language_model;  ///< nullopt if the package is not a language model
  std::optional<std::string> tokenizer_json;         ///< nullopt if the package has none
  std::optional<std::string> chat_format_json;       ///< nullopt if the package has none
  std::optional<BatchSplit> batch_split;             ///< nullopt unless kBatchGroup has several ranks
  std::optional<ContextShare> context;               ///< nullopt unless the tokens of sequences are divided
  std::string graph_sha256;                          ///< of the package's graph
  std::vector<TensorDescription> tensors;
};

}  // namespace accord::engine
