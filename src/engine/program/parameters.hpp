#pragma once
// This rank's weights in memory.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"
#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/program/packed_stack.hpp"
#include "engine/program/region.hpp"
#include "engine/program/tensor.hpp"
#include "kernels/linear/format.hpp"

namespace accord::engine {

/// How the graph uses a weight.
struct ParameterUse {
  bool plain = false;    ///< as an ordinary tensor: row-major
  bool table = false;    ///< as rows of an embedding: packed if it is packed anyway, else row-major
  bool linear = false;   ///< as [out, in] of a linear layer: packed
  bool product = false;  ///< as [in, out] of mm or addmm: packed transposed
  bool experts = false;  ///< as [experts, out, in], or [heads, out, in]: packed matrix by matrix
  int convolution = 0;   ///< as [out, in, ..] of a convolution of this many groups: packed by group, inputs last

  bool any() const { return plain || table || linear || product || experts || convolution > 0; }
};

/// Returns the uses of the graph's parameters, in their order.
std::vector<ParameterUse> parameter_uses(const Graph& graph);

/// A place in a piece of memory that several weights share.
struct JoinedPlace {
  std::size_t first = 0;      ///< the parameter that begins there, by its position in Graph::parameters
  std::int64_t offset = 0;    ///< in bytes
  std::size_t all_bytes = 0;  ///< of all of them
};

/// One weight of this rank. Forms that no node needs are absent.
struct ParameterMemory {
  std::span<const std::byte> plain;
  std::optional<kernels::PackedMatrix> linear;
  std::optional<kernels::PackedMatrix> product;
  std::optional<PackedStack> experts;
  std::optional<PackedStack> convolution;
  std::byte* address = nullptr;  ///< where steps read the elements: `plain`, or memory of the target
  /// kFloat8E4M3FN: the elements at `address` are float8 with their scales (gpu/float8_products.hpp), which only
  /// linear layers and embeddings, or only experts, read. nullopt: they have the dtype that the graph declares.
  std::optional<DType> stored_dtype;
  int scale_group = 0;           ///< Tensor::scale_group
  bool has_inputs_last = false;  ///< the elements at `address` have inputs_last_layout()
  bool is_sharded = false;       ///< other ranks have other parts of it
  /// Set for a weight that shares one piece of memory with weights of the same input: steps may then multiply with all
  /// of them at once.
  std::optional<JoinedPlace> joined;

  /// Returns true if the CPU can read the elements, in whatever form.
  bool is_known() const { return !plain.empty() || linear || product || experts || convolution; }
};

/// Returns the layout of a weight [out, in, ..] of a convolution that is [out, .., in] in memory.
kernels::Layout inputs_last_layout(std::span<const std::int64_t> sizes);

struct ParameterBytes {
  std::uint64_t sharded = 0;  ///< this rank's part of the sharded tensors, as in the package
  std::uint64_t replicated = 0;
};

struct Parameters {
  std::vector<ParameterMemory> memory;  ///< indexed by position in Graph::parameters
  ParameterBytes bytes;
  std::vector<std::shared_ptr<const void>> placed;         ///< memory of the target
  std::uint64_t placed_bytes = 0;                          ///< in `placed`
  std::vector<Region> regions;                             ///< weights that were reordered
  std::vector<std::shared_ptr<const FileMapping>> mapped;  ///< all others: the package's own pages
};

/// Returns the matrices of a part that is packed at `data`: one, or those of its experts or of a convolution's
/// groups. REQUIRES: the part is packed.
PackedStack packed_part(const TensorEntry& entry, const TensorPart& part, const std::byte* data);

/// kRead: weights are read and checked. kLeftOut: weights that are used in place are mapped and not checked, and
/// others are zeros in memory without pages, so a program can be prepared but not run.
enum class Contents : std::uint8_t { kRead, kLeftOut };

/// Returns the `weights` that the graph's parameters name, in their order. Fails with kInvalidArgument, naming the
/// weight, if one is missing or has another dtype or shape than the graph declares.
Result<std::vector<const TensorView*>> weights_of(const Graph& graph, const std::map<std::string, TensorView>& weights);

}  // namespace accord::engine
