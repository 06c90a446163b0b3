#pragma once
// This rank's weights in memory.

#include <optional>
#include <string>
#include <vector>

#include "engine/graph/graph.hpp"
#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/runtime/region.hpp"
#include "engine/runtime/tensor.hpp"
#include "kernels/gemm.hpp"

namespace accord::engine {

/// How the graph uses a weight.
struct ParameterUse {
  bool plain = false;    ///< as an ordinary tensor: kept as it is
  bool linear = false;   ///< as [out, in] of a linear layer: packed
  bool product = false;  ///< as [in, out] of mm or addmm: packed transposed

  bool any() const { return plain || linear || product; }
};

/// The uses of each of the graph's parameters, in their order.
std::vector<ParameterUse> parameter_uses(const Graph& graph);

/// One weight of this rank. What no node needs is absent: a weight that is only packed keeps no plain copy.
struct ParameterMemory {
  Region plain;
  std::optional<kernels::LinearWeights> linear;
  std::optional<kernels::LinearWeights> product;
};

struct ParameterBytes {
  std::uint64_t sharded = 0;  ///< of this rank's part of the sharded tensors
  std::uint64_t replicated = 0;
};

struct Parameters {
  std::vector<ParameterMemory> memory;  ///< by position in Graph::parameters
  ParameterBytes bytes;
};

/// Reads and checks the granules of `parts` (one for each of the graph's parameters) that the graph uses; packs the
/// weights of matrix products one at a time through one staging buffer, so that no weight is there twice.
Result<Parameters> load_parameters(Package& package, const Graph& graph, const std::vector<TensorPart>& parts);

}  // namespace accord::engine
