#pragma once
// This rank's weights in memory.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/device/device_memory.hpp"
#include "engine/graph/graph.hpp"
#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/runtime/packed_stack.hpp"
#include "engine/runtime/region.hpp"
#include "engine/runtime/tensor.hpp"
#include "kernels/linear/format.hpp"

namespace accord::engine {

/// How the graph uses a weight.
struct ParameterUse {
  bool plain = false;    ///< as an ordinary tensor: row-major
  bool table = false;    ///< as rows of an embedding: packed where it is that anyway, else row-major
  bool linear = false;   ///< as [out, in] of a linear layer: packed
  bool product = false;  ///< as [in, out] of mm or addmm: packed transposed
  bool experts = false;  ///< as [experts, out, in]: packed expert by expert
  int convolution = 0;   ///< as [out, in, ..] of a convolution of so many groups: packed group by group, inputs last

  bool any() const { return plain || table || linear || product || experts || convolution > 0; }
};

/// The uses of each of the graph's parameters, in their order.
std::vector<ParameterUse> parameter_uses(const Graph& graph);

/// One weight of this rank. What no node needs is absent.
struct ParameterMemory {
  std::span<const std::byte> plain;
  std::optional<kernels::PackedMatrix> linear;
  std::optional<kernels::PackedMatrix> product;
  std::optional<PackedStack> experts;
  std::optional<PackedStack> convolution;
  std::byte* on_device = nullptr;  ///< row-major; then `plain` is there too of small weights, for folding
  /// kFloat8E4M3FN: what is on the device is float8 with its scales (float8_products.hpp), which linear layers and embeddings, or experts, alone read;
  /// nullopt: of the dtype that the graph says.
  std::optional<DType> device_dtype;
};

struct ParameterBytes {
  std::uint64_t sharded = 0;  ///< of this rank's part of the sharded tensors, as they lie in the package
  std::uint64_t replicated = 0;
};

struct Parameters {
  std::vector<ParameterMemory> memory;  ///< by position in Graph::parameters
  ParameterBytes bytes;
  std::vector<DeviceMemory> on_device;
  std::vector<Region> regions;                             ///< what was brought into another order lies here,
  std::vector<std::shared_ptr<const FileMapping>> mapped;  ///< all else in the package's own pages
};

/// The matrices of a part, which lies packed at `data`: one, or those of its experts or of a convolution's groups. REQUIRES: it is packed.
PackedStack packed_part(const TensorEntry& entry, const TensorPart& part, const std::byte* data);

/// Bytes that loading `parts` takes on the CPU, as they lie in the package: of all that the graph uses. Float8 counts as what it becomes.
std::uint64_t planned_bytes(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts);

/// kRead: weights are read and checked. kLeftOut: weights that are used in place are mapped and not checked, and others
/// are zeros in memory without pages, so a program can be prepared but not run.
enum class Contents : std::uint8_t { kRead, kLeftOut };

/// Maps and checks the granules of `parts` (one for each of the graph's parameters) that the graph uses. What lies in the package
/// as the graph uses it stays there, shared with other processes; the rest (row-major weights of products, columns of a
/// row-major tensor, float8 of products) is read and brought into order. kCorrupt also for a packed tensor of which the graph wants elements.
/// Cost: one pass over the weights, by `threads` threads.
Result<Parameters> load_parameters(Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                   int threads, Contents contents = Contents::kRead);

/// Those of `weights` that the graph's parameters name, in their order; kInvalidArgument names one that is missing, or of another dtype or shape
/// than the graph says.
Result<std::vector<const TensorView*>> weights_of(const Graph& graph, const std::map<std::string, TensorView>& weights);

/// The same for weights that are in memory, by the names of the graph's parameters. What is used as it is stays where it is,
/// and must outlive what is returned; weights of matrix products are packed. kInvalidArgument names a weight that is missing,
/// or of another dtype or shape than the graph says.
Result<Parameters> take_parameters(const Graph& graph, const std::map<std::string, TensorView>& weights);

}  // namespace accord::engine
