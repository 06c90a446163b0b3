// Nodes are prepared in order. A value becomes a tensor: strides over a storage; a view shares its input's storage. A
// node whose inputs are all weights or constants is first prepared with steps on the CPU. If its outputs are small, it
// runs at once, and they become constants (position ids, masks of ones). Otherwise, and like every other node, it is
// prepared with the steps of the target. Every other storage is assigned its first and last node, and the arena is
// planned from these lifetimes. Finally, each output of the graph is put into the arena as a contiguous tensor.
#include "engine/program/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/graph/node_access.hpp"
#include "engine/program/calls.hpp"
#include "engine/program/memory_plan.hpp"
#include "engine/program/preparation.hpp"
#include "engine/program/program_builder.hpp"

namespace accord::engine {
namespace {

constexpr std::size_t kMaxTensorBytes = std::size_t{1} << 46;
constexpr std::size_t kMaxBytes = std::size_t{1} << 62;  // of all tensors together, so that no sum of them overflows

// Returns the bytes of `sizes`, or nullopt if a size is negative or absurdly large.
std::optional<std::size_t> bytes_of(DType dtype, const Sizes& sizes) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size > 0 && bytes > kMaxTensorBytes / static_cast<std::size_t>(size)) return std::nullopt;
    bytes *= static_cast<std::size_t>(size);
  }
  return bytes;
}

}  // namespace

ProgramBuilder::ProgramBuilder(const ProgramSource& source, const SymbolValues& symbols)
    : source_(source),
      symbols_(symbols),
      tensors_(source.graph.values.size()),
      last_use_(source.graph.values.size(), -1),
      parameter_of_(source.graph.values.size(), -1) {
  for (std::size_t i = 0; i < source.graph.nodes.size(); ++i) {
    for_each_input(source.graph.nodes[i],
                   [&](ValueId id) { last_use_[static_cast<std::size_t>(id)] = static_cast<int>(i); });
  }
  for (const ValueId output : source.graph.outputs) last_use_[static_cast<std::size_t>(output)] = kAlways;
  for (std::size_t i = 0; i < source.graph.parameters.size(); ++i) {
    parameter_of_[static_cast<std::size_t>(source.graph.parameters[i].value)] = static_cast<int>(i);
  }
}

Result<Program> ProgramBuilder::build() && {
  ACCORD_RETURN_IF_ERROR(add_inputs_and_parameters());
  const std::vector<Node>& nodes = source_.graph.nodes;
  for (; node_index_ < static_cast<int>(nodes.size()); ++node_index_) {
    ACCORD_RETURN_IF_ERROR(prepare_node(nodes[static_cast<std::size_t>(node_index_)]));
  }
  for (const ValueId output : source_.graph.outputs) ACCORD_RETURN_IF_ERROR(add_output(output));
  plan_arena();
  ACCORD_RETURN_IF_ERROR(place_constants());
  if (source_.notes != nullptr) source_.notes->tensors = std::move(tensors_);
  return std::move(program_);
}

Status ProgramBuilder::add_inputs_and_parameters() {
  const Graph& graph = source_.graph;
  for (const ValueId input : graph.inputs) {
    const Value& value = graph.values[static_cast<std::size_t>(input)];
    ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, evaluate(value.shape));
    Tensor tensor{value.dtype, kernels::contiguous_layout(sizes), -1, 0};
    // Inputs that are copied into the arena have a place there even if nobody reads them.
    tensor.storage = source_.target.reads_inputs_in_place()
                         ? add_storage({StorageKind::kInput, 0, nullptr, 0, -1})
                         : add_storage({StorageKind::kArena, tensor.bytes(), nullptr, 0, 0});
    set(input, tensor);
    program_.inputs.push_back(tensor.storage);
  }
  // Weights that share memory share a storage.
  std::vector<StorageId> storages;
  for (const ParameterMemory& memory : source_.parameters.memory) {
    std::byte* base = const_cast<std::byte*>(memory.plain.data());  // steps only read weights
    const bool has_own = !memory.joined || memory.joined->offset == 0;
    storages.push_back(
        has_own ? add_storage({StorageKind::kParameter, 0, base, 0, -1, memory.is_known(), memory.is_sharded}) : -1);
  }
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const Value& value = graph.values[static_cast<std::size_t>(graph.parameters[i].value)];
    const ParameterMemory& memory = source_.parameters.memory[i];
    ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, evaluate(value.shape));
    const JoinedPlace place = memory.joined.value_or(JoinedPlace{i, 0});
    Storage& storage = storages_[static_cast<std::size_t>(storages[place.first])];
    storage.is_sharded = storage.is_sharded && memory.is_sharded;
    const kernels::Layout layout =
        memory.has_inputs_last ? inputs_last_layout(sizes) : kernels::contiguous_layout(sizes);
    set(graph.parameters[i].value,
        {memory.stored_dtype.value_or(value.dtype), layout, storages[place.first], place.offset, memory.scale_group});
  }
  return Status();
}

Result<Sizes> ProgramBuilder::evaluate(const SymbolicShape& shape) const {
  if (shape.size() > static_cast<std::size_t>(kernels::kMaxDims)) {
    return Status(StatusCode::kUnsupported, fmt::format("a tensor with {} dimensions; at most {} are supported",
                                                        shape.size(), kernels::kMaxDims));
  }
  Sizes sizes;
  for (const SymbolicInt& size : shape) {
    ACCORD_ASSIGN_OR_RETURN(sizes.emplace_back(), size.evaluate(symbols_));
    if (sizes.back() < 0) return Status(StatusCode::kCorrupt, "a negative size: " + size.to_string());
  }
  return sizes;
}

StorageId ProgramBuilder::add_storage(Storage storage) {
  storages_.push_back(storage);
  program_.bases.push_back(storages_.back().base);
  return static_cast<StorageId>(storages_.size() - 1);
}

void ProgramBuilder::set(ValueId value, Tensor tensor) {
  Storage& storage = storages_[static_cast<std::size_t>(tensor.storage)];
  storage.last_use = std::max(storage.last_use, last_use_[static_cast<std::size_t>(value)]);
  tensors_[static_cast<std::size_t>(value)] = tensor;
}

const ParameterMemory* ProgramBuilder::parameter(ValueId value) const {
  const int at = parameter_of_[static_cast<std::size_t>(value)];
  return at < 0 ? nullptr : &source_.parameters.memory[static_cast<std::size_t>(at)];
}

Result<Tensor> ProgramBuilder::make(DType dtype, const Sizes& sizes, std::optional<kernels::Layout> layout) {
  const auto bytes = bytes_of(dtype, sizes);
  if (!bytes || sizes.size() > static_cast<std::size_t>(kernels::kMaxDims)) {
    return Status(StatusCode::kResourceExhausted, "a tensor cannot have the sizes " + sizes_text(sizes));
  }
  if (*bytes > kMaxBytes - created_bytes_) {
    return Status(StatusCode::kResourceExhausted, "all tensors together are larger than any memory");
  }
  created_bytes_ += *bytes;
  const StorageId storage = add_storage({StorageKind::kArena, *bytes, nullptr, node_index_, node_index_});
  pending_storages_.push_back(storage);
  return Tensor{dtype, layout ? *layout : kernels::contiguous_layout(sizes), storage, 0};
}

Tensor ProgramBuilder::make_constant(DType dtype, const Sizes& sizes, std::span<const std::byte> bytes) {
  program_.constants.push_back(std::make_unique<std::byte[]>(std::max<std::size_t>(bytes.size(), 1)));
  std::byte* memory = program_.constants.back().get();
  std::copy(bytes.begin(), bytes.end(), memory);
  const StorageId storage = add_storage({StorageKind::kConstant, bytes.size(), memory, node_index_, -1});
  return Tensor{dtype, kernels::contiguous_layout(sizes), storage, 0};
}

bool ProgramBuilder::is_constant(StorageId storage) const {
  const Storage& there = storages_[static_cast<std::size_t>(storage)];
  return there.kind == StorageKind::kConstant || (there.kind == StorageKind::kParameter && there.is_known);
}

const std::byte* ProgramBuilder::known_bytes(const Tensor& tensor) const {
  const Storage& storage = storage_of(tensor);
  const bool known = is_constant(tensor.storage) && storage.base != nullptr && tensor.bytes() <= kFoldLimit;
  return known ? storage.base + tensor.offset : nullptr;
}

bool ProgramBuilder::is_last_use(const Tensor& tensor) const {
  const Storage& storage = storage_of(tensor);
  return storage.kind == StorageKind::kArena && storage.last_use <= node_index_;
}

Status ProgramBuilder::prepare_node(const Node& node) {
  bool is_constant_node = true;
  for_each_input(node, [&](ValueId id) { is_constant_node = is_constant_node && is_constant(tensor(id).storage); });
  if (is_constant_node) {
    ACCORD_ASSIGN_OR_RETURN(const bool is_done, prepare_constant_node(node));
    if (is_done) return Status();
  }
  ACCORD_RETURN_IF_ERROR(prepare_node(node, source_.target.steps()));
  note_kind(pending_.empty() ? ProgramNotes::Kind::kView : ProgramNotes::Kind::kSteps);
  for (Step& step : pending_) program_.steps.push_back({std::move(step), &node});
  return Status();
}

// Returns false if the target's own steps have to compute the node, with everything as it was before.
Result<bool> ProgramBuilder::prepare_constant_node(const Node& node) {
  const Checkpoint before{storages_.size(), program_.constants.size(), created_bytes_};
  may_fold_ = true;
  if (prepare_node(node, source_.target.constant_steps()).ok() && may_fold_ && !pending_.empty() &&
      is_worth_folding(node)) {
    note_kind(ProgramNotes::Kind::kConstant);
    ACCORD_RETURN_IF_ERROR(fold());
    return true;
  }
  return_to(before, node);
  return false;
}

void ProgramBuilder::return_to(const Checkpoint& before, const Node& node) {
  storages_.resize(before.storages);
  program_.bases.resize(before.storages);
  program_.constants.resize(before.constants);
  created_bytes_ = before.made_bytes;
  for (const ValueId output : node.outputs) tensors_[static_cast<std::size_t>(output)].reset();
}

void ProgramBuilder::note_kind(ProgramNotes::Kind kind) {
  if (source_.notes != nullptr) source_.notes->nodes.push_back(kind);
}

Status ProgramBuilder::prepare_node(const Node& node, const StepTable& steps) {
  const FoundOp found = source_.find_op(node.op, steps);
  if (found.prepare == nullptr) return Status(StatusCode::kUnsupported, node_text(node) + ": this op is unknown");
  pending_.clear();
  pending_storages_.clear();
  Preparation op(*this, node, steps, found.narrow);
  Status status = found.prepare(op);
  if (status.ok()) status = op.round_outputs();
  if (status.ok()) status = check_outputs(node);
  if (!status.ok()) {
    const std::string place = node_text(node);
    return status.message().find(place) == std::string::npos ? status.with_context(place) : status;
  }
  return Status();
}

// The shapes in the graph were computed by whoever exported it. What they promise must match what the ops return.
Status ProgramBuilder::check_outputs(const Node& node) const {
  for (const ValueId output : node.outputs) {
    if (!is_used(output)) continue;
    const Value& value = source_.graph.values[static_cast<std::size_t>(output)];
    if (!is_set(output)) return Status(StatusCode::kUnsupported, "its output \"" + value.name + "\" has no kernel");
    ACCORD_ASSIGN_OR_RETURN(const Sizes declared, evaluate(value.shape));
    const Tensor& made = tensor(output);
    if (made.sizes() != declared || made.dtype != value.dtype) {
      return Status(StatusCode::kCorrupt, fmt::format("the graph declares \"{}\" as {} {}, but the op returns {} {}",
                                                      value.name, to_string(value.dtype), sizes_text(declared),
                                                      to_string(made.dtype), sizes_text(made.sizes())));
    }
  }
  return Status();
}

// Both what is read and what is created counts: an expanded view shows far more elements than there are in memory.
bool ProgramBuilder::is_worth_folding(const Node& node) {
  std::size_t bytes = 0;
  for (const StorageId storage : pending_storages_) bytes += storages_[static_cast<std::size_t>(storage)].bytes;
  if (bytes > kFoldLimit) return false;
  auto work = static_cast<std::int64_t>(bytes);
  for_each_input(node, [&](ValueId id) { work = std::min(work + tensor(id).count(), kMaxFoldWork + 1); });
  if (work > kMaxFoldWork || fold_work_ + work > kMaxTotalFoldWork) return false;
  fold_work_ += work;
  return true;
}

Status ProgramBuilder::fold() {
  for (const StorageId id : pending_storages_) {
    Storage& storage = storages_[static_cast<std::size_t>(id)];
    program_.constants.push_back(std::make_unique<std::byte[]>(std::max<std::size_t>(storage.bytes, 1)));
    storage.kind = StorageKind::kConstant;
    storage.base = program_.constants.back().get();
    program_.bases[static_cast<std::size_t>(id)] = storage.base;
  }
  return source_.target.run_constant_steps(pending_, program_.bases);
}

// The caller must get whole tensors of its own: not an input, a weight, or memory that another output shows too.
Status ProgramBuilder::add_output(ValueId output) {
  const Tensor& made = tensor(output);
  const Storage& storage = storage_of(made);
  const bool shared = std::any_of(program_.outputs.begin(), program_.outputs.end(),
                                  [&](const Tensor& other) { return other.storage == made.storage; });
  if (storage.kind == StorageKind::kArena && made.layout.is_contiguous() && !shared) {
    program_.outputs.push_back(made);
    return Status();
  }
  ACCORD_ASSIGN_OR_RETURN(Tensor whole, make(made.dtype, made.sizes()));
  storages_[static_cast<std::size_t>(whole.storage)].last_use = kAlways;
  static const Node output_copy;
  pending_.clear();
  Preparation op(*this, output_copy, source_.target.steps(), kernels::NarrowFloats::kUnchanged);
  ACCORD_RETURN_IF_ERROR(op.add(ConvertCall{made, whole}));
  for (Step& step : pending_) program_.steps.push_back({std::move(step), nullptr});
  program_.outputs.push_back(whole);
  return Status();
}

// Replaces the addresses, which until here are those that constants were computed with.
Status ProgramBuilder::place_constants() {
  std::vector<Constant> constants;
  std::vector<std::size_t> ids;
  for (std::size_t id = 0; id < storages_.size(); ++id) {
    const Storage& storage = storages_[id];
    if (storage.kind != StorageKind::kConstant) continue;
    constants.push_back({{storage.base, storage.bytes}, storage.base});
    ids.push_back(id);
  }
  ACCORD_ASSIGN_OR_RETURN(program_.placed_constants, source_.target.place_constants(constants));
  for (std::size_t i = 0; i < ids.size(); ++i) program_.bases[ids[i]] = constants[i].address;
  for (std::size_t i = 0; i < source_.graph.parameters.size(); ++i) {
    const Tensor& weight = tensor(source_.graph.parameters[i].value);
    std::byte* const address = source_.parameters.memory[i].address;
    program_.bases[static_cast<std::size_t>(weight.storage)] = address == nullptr ? address : address - weight.offset;
  }
  if (program_.placed_constants != nullptr) program_.constants.clear();
  return Status();
}

void ProgramBuilder::plan_arena() {
  std::vector<Lifetime> lifetimes;
  for (std::size_t id = 0; id < storages_.size(); ++id) {
    const Storage& storage = storages_[id];
    if (storage.kind != StorageKind::kArena) continue;
    lifetimes.push_back({storage.bytes, storage.created_at, storage.last_use});
    program_.arena.push_back({static_cast<StorageId>(id), 0});
  }
  const MemoryPlan plan = plan_memory(lifetimes);
  for (std::size_t i = 0; i < lifetimes.size(); ++i) program_.arena[i].offset = plan.offsets[i];
  program_.arena_bytes = plan.bytes;
  if (source_.notes != nullptr) note_arena(lifetimes);
}

void ProgramBuilder::note_arena(std::span<const Lifetime> lifetimes) const {
  std::vector<ValueId> values(storages_.size(), -1);
  for (std::size_t id = tensors_.size(); id-- > 0;) {
    if (tensors_[id]) values[static_cast<std::size_t>(tensors_[id]->storage)] = static_cast<ValueId>(id);
  }
  const int end = static_cast<int>(source_.graph.nodes.size());
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    const Program::ArenaPiece& piece = program_.arena[i];
    source_.notes->arena.push_back({piece.offset, lifetimes[i].bytes, lifetimes[i].first,
                                    std::min(lifetimes[i].last, end), values[static_cast<std::size_t>(piece.storage)]});
  }
}

Result<Program> prepare_program(const ProgramSource& source, const SymbolValues& symbols) {
  return ProgramBuilder(source, symbols).build();
}

std::vector<TensorView> Program::output_views(Device device) const {
  std::vector<TensorView> views;
  views.reserve(outputs.size());
  for (const Tensor& output : outputs) {
    std::byte* const data = bases[static_cast<std::size_t>(output.storage)] + output.offset;
    views.push_back({{data, static_cast<std::size_t>(output.count()), output.dtype, device}, output.sizes()});
  }
  return views;
}

}  // namespace accord::engine
