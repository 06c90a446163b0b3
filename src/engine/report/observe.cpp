// The graph of the package is partitioned again to know which values the ranks hold in parts, and the module of each.
// After all steps of a node, its outputs are in the arena as the next node will read them. If the engine is on a
// device, they are copied from there.
#include "engine/report/observe.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "engine/package/package.hpp"
#include "engine/partition/partition.hpp"
#include "engine/runtime/inputs.hpp"
#include "kernels/index.hpp"

namespace accord::engine {
namespace {

std::size_t index_of(ValueId id) { return static_cast<std::size_t>(id); }

std::int64_t product(std::span<const std::int64_t> sizes) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= size;
  return elements;
}

/// Bytes from the element whose indices are all 0 to the end of the last element.
std::size_t reach(const Tensor& tensor) {
  if (tensor.count() == 0) return 0;
  std::int64_t last = 0;
  for (int dim = 0; dim < tensor.dims(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return static_cast<std::size_t>(last + 1) * size_of(tensor.dtype);
}

/// The model before partitioning, and its partition.
struct WholeModel {
  Package package;
  CutPackage cut;
};

Result<WholeModel> whole_model(const LoadedEngine& engine) {
  ACCORD_ASSIGN_OR_RETURN(Package package, engine.open_package());
  ACCORD_ASSIGN_OR_RETURN(CutPackage cut,
                          cut_package(package, engine.groups().places(), engine.settings().canonical_ranks));
  return WholeModel{std::move(package), std::move(cut)};
}

class Observer {
 public:
  Observer(RunContext& context, const WholeModel& model, const SeeValue& see)
      : context_(context), engine_(context.engine()), whole_(model.package.graph()), part_(model.cut.part), see_(see) {
    for (const Node& node : whole_.nodes) {
      for (const ValueId output : node.outputs) inner_.emplace(output, Inner{node.module, inner_.size(), false});
    }
  }

  // Passes a value of the model's graph to see_. Skips values that partitioning or the passes added.
  Status see(ValueId id, const Tensor& tensor, const Execution& execution) {
    const auto inner = inner_.find(id);
    if (inner == inner_.end()) return Status();
    inner->second.seen = true;
    Sizes sizes = tensor.sizes();
    bytes_.resize(std::max<std::size_t>(tensor.bytes(), 1));
    const kernels::View whole{bytes_.data(), tensor.dtype, kernels::contiguous_layout(sizes)};
    ACCORD_ASSIGN_OR_RETURN(const kernels::ConstView made, on_cpu(tensor, execution));
    ACCORD_RETURN_IF_ERROR(kernels::copy_strided(made, whole));
    if (const std::optional<Shard>& shard = part_.shards[index_of(id)]) {
      ACCORD_RETURN_IF_ERROR(gather(*shard, id, sizes));
    }
    const auto count = static_cast<std::size_t>(product(sizes));
    see_({whole_.values[index_of(id)].name,
          inner->second.module,
          inner->second.position,
          {Buffer{bytes_.data(), count, tensor.dtype, {}}, std::move(sizes)}});
    return Status();
  }

  // Reports the values that were not seen.
  Status report_unseen(const SymbolValues& symbols) const {
    for (const auto& [id, inner] : inner_) {
      if (inner.seen) continue;
      const Value& value = whole_.values[index_of(id)];
      Sizes sizes;
      for (const SymbolicInt& size : value.shape) {
        ACCORD_ASSIGN_OR_RETURN(sizes.emplace_back(), size.evaluate(symbols));
      }
      see_({value.name, inner.module, inner.position, {Buffer{nullptr, 0, value.dtype, {}}, std::move(sizes)}});
    }
    return Status();
  }

 private:
  struct Inner {
    std::string module;
    std::size_t position = 0;
    bool seen = false;
  };

  // Returns the tensor on the CPU, including the gaps between its elements. Waits for the steps that compute it.
  Result<kernels::ConstView> on_cpu(const Tensor& tensor, const Execution& execution) {
    kernels::ConstView made = execution.read(tensor);
    if (execution.device.type == DeviceType::kCpu) return made;
    host_copy_.resize(std::max<std::size_t>(reach(tensor), 1));
    ACCORD_RETURN_IF_ERROR(context_.copy_to_cpu(host_copy_.data(), made.data, tensor.count() > 0 ? reach(tensor) : 0));
    made.data = host_copy_.data();
    return made;
  }

  // Gathers the parts of all ranks and interleaves them along the divided dimension. Several ranks may have the same
  // part (key heads).
  Status gather(const Shard& shard, ValueId id, Sizes& sizes) {
    std::optional<Communicator> communicator = engine_.groups().communicator(shard.group);
    if (!communicator) return Status();
    const Value& value = whole_.values[index_of(id)];
    const auto dim = static_cast<std::size_t>(shard.dim);
    const std::int64_t outer = product(std::span(sizes).first(dim));
    const std::int64_t inner = product(std::span(sizes).subspan(dim + 1));
    std::vector<Extent> extents;
    std::vector<std::size_t> counts;
    const std::int64_t width = value.shape[dim].constant();
    for (Rank rank = 0; rank < communicator->size(); ++rank) {
      extents.push_back(local_extent(shard, width, {rank, communicator->size()}));
      counts.push_back(static_cast<std::size_t>(outer * extents.back().count * inner));
    }
    const std::size_t element = size_of(value.dtype);
    std::vector<std::byte> parts(std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * element);
    const auto count = static_cast<std::size_t>(product(sizes));
    ACCORD_RETURN_IF_ERROR(communicator->all_gather_v(ConstBuffer(bytes_.data(), count, value.dtype),
                                                      Buffer{parts.data(), parts.size() / element, value.dtype, {}},
                                                      counts));
    const std::size_t row = static_cast<std::size_t>(width * inner) * element;
    bytes_.resize(static_cast<std::size_t>(outer) * row);
    const std::byte* from = parts.data();
    for (const Extent& extent : extents) {
      const std::size_t piece = static_cast<std::size_t>(extent.count * inner) * element;
      std::byte* to = bytes_.data() + static_cast<std::size_t>(extent.first * inner) * element;
      for (std::int64_t i = 0; i < outer; ++i, from += piece, to += row) std::copy_n(from, piece, to);
    }
    sizes[dim] = width;
    return Status();
  }

  RunContext& context_;
  const LoadedEngine& engine_;
  const Graph& whole_;
  const Partition& part_;
  const SeeValue& see_;
  std::map<ValueId, Inner> inner_;  // the package's own values
  std::vector<std::byte> bytes_;
  std::vector<std::byte> host_copy_;  // from a device
};

}  // namespace

Status run_observed(RunContext& context, std::span<const TensorView> inputs, const SeeValue& see) {
  const LoadedEngine& engine = context.engine();
  const Result<WholeModel> model = whole_model(engine);
  std::optional<Observer> observer;
  if (model.ok()) observer.emplace(context, *model, see);
  const std::vector<Node>& nodes = engine.graph().nodes;
  const auto after_node = [&](std::size_t node, const ProgramNotes& notes, const Execution& execution) {
    for (const ValueId output : nodes[node].outputs) {
      const std::optional<Tensor>& tensor = notes.tensors[index_of(output)];
      if (tensor) ACCORD_RETURN_IF_ERROR(observer->see(output, *tensor, execution));
    }
    return Status();
  };
  ACCORD_RETURN_IF_ERROR(context.run_annotated(model.status(), inputs, after_node));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::int64_t> values, match_inputs(engine.graph(), inputs));
  return observer->report_unseen(symbol_values(engine.graph(), values));
}

}  // namespace accord::engine
