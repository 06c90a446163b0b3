// Nodes are prepared in order. A value becomes a tensor: strides over a storage; a view shares its input's storage. A
// node whose inputs are all weights or constants, and whose outputs are small, runs at once, and its outputs become
// constants (position ids, masks of ones). Every other storage is assigned its first and last node, and the arena is
// planned from these lifetimes. Finally, each output of the graph is put into the arena as a contiguous tensor.
#include "engine/program/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"
#include "device/runtime.hpp"
#include "engine/gpu/parameters.hpp"
#include "engine/gpu/row_steps.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/program/memory_plan.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/program/preparation.hpp"
#include "engine/program/program_builder.hpp"
#include "kernels/index.hpp"

namespace accord::engine {
namespace {

constexpr std::size_t kLargestTensor = std::size_t{1} << 46;
constexpr std::size_t kMostBytes = std::size_t{1} << 62;  // of all tensors together, so that no sum of them overflows

// Returns the bytes of `sizes`, or nullopt if a size is negative or absurdly large.
std::optional<std::size_t> bytes_of(DType dtype, const Sizes& sizes) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size > 0 && bytes > kLargestTensor / static_cast<std::size_t>(size)) return std::nullopt;
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
  if (is_on_device()) ACCORD_RETURN_IF_ERROR(place_on_device());
  if (source_.notes != nullptr) source_.notes->tensors = std::move(tensors_);
  return std::move(program_);
}

Status ProgramBuilder::add_inputs_and_parameters() {
  const Graph& graph = source_.graph;
  for (const ValueId input : graph.inputs) {
    const Value& value = graph.values[static_cast<std::size_t>(input)];
    ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, evaluate(value.shape));
    Tensor tensor{value.dtype, kernels::contiguous_layout(sizes), -1, 0};
    // In programs on devices, inputs are copied into the arena, where a captured graph finds them again, even those
    // that nobody reads.
    tensor.storage = is_on_device() ? add_storage({StorageKind::kArena, tensor.bytes(), nullptr, 0, 0})
                                    : add_storage({StorageKind::kInput, 0, nullptr, 0, -1});
    set(input, tensor);
    program_.inputs.push_back(tensor.storage);
  }
  const std::vector<ParameterUse> uses = parameter_uses(graph);
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const Value& value = graph.values[static_cast<std::size_t>(graph.parameters[i].value)];
    ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, evaluate(value.shape));
    std::byte* base = const_cast<std::byte*>(source_.parameters.memory[i].plain.data());  // steps only read weights
    const StorageId storage = add_storage({StorageKind::kParameter, 0, base, 0, -1});
    const DType dtype = source_.parameters.memory[i].device_dtype.value_or(value.dtype);
    const bool inputs_last = is_on_device() && uses[i].convolution > 0;
    set(graph.parameters[i].value,
        {dtype, inputs_last ? inputs_last_layout(sizes) : kernels::contiguous_layout(sizes), storage, 0});
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
    return Status(StatusCode::kResourceExhausted, "a tensor of sizes " + sizes_text(sizes) + " cannot be");
  }
  if (*bytes > kMostBytes - made_bytes_) {
    return Status(StatusCode::kResourceExhausted, "all tensors together are larger than any memory");
  }
  made_bytes_ += *bytes;
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
  if (there.kind == StorageKind::kConstant) return true;
  // On a device, some weights cannot be read by the CPU.
  return there.kind == StorageKind::kParameter && (!is_on_device() || there.base != nullptr);
}

const std::byte* ProgramBuilder::known_bytes(const Tensor& tensor) const {
  const Storage& storage = storage_of(tensor);
  const bool known = is_constant(tensor.storage) && storage.base != nullptr && tensor.bytes() <= kFoldLimit;
  return known ? storage.base + tensor.offset : nullptr;
}

bool ProgramBuilder::dies_here(const Tensor& tensor) const {
  const Storage& storage = storage_of(tensor);
  return storage.kind == StorageKind::kArena && storage.last_use <= node_index_;
}

Status ProgramBuilder::prepare_node(const Node& node) {
  const FoundOp found = find_op(node.op, source_.device.type);
  if (found.prepare == nullptr) return check_supported(source_.graph, source_.device.type);
  pending_.clear();
  pending_storages_.clear();
  may_fold_ = true;
  for_each_input(node, [&](ValueId id) {
    if (!is_constant(tensor(id).storage)) may_fold_ = false;
  });
  Preparation op(*this, node, found.narrow);
  Status status = found.prepare(op);
  if (status.ok()) status = op.round_outputs();
  if (status.ok()) status = check_outputs(node);
  if (!status.ok()) {
    const std::string place = node_text(node);
    return status.message().find(place) == std::string::npos ? status.with_context(place) : status;
  }
  return finish_node(node);
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
      return Status(StatusCode::kCorrupt, fmt::format("the graph says that \"{}\" is {} {}, but the op gives {} {}",
                                                      value.name, to_string(value.dtype), sizes_text(declared),
                                                      to_string(made.dtype), sizes_text(made.sizes())));
    }
  }
  return Status();
}

Status ProgramBuilder::finish_node(const Node& node) {
  const bool folds = may_fold_ && !pending_.empty() && worth_folding(node);
  if (source_.notes != nullptr) {
    using Kind = ProgramNotes::Kind;
    source_.notes->nodes.push_back(folds ? Kind::kConstant : pending_.empty() ? Kind::kView : Kind::kSteps);
  }
  if (folds) return fold();
  for (PendingStep& step : pending_) {
    if (is_on_device() && !step.on_device) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("{}: this op has no kernel for {}", node_text(node), to_string(source_.device)));
    }
    program_.steps.push_back({std::move(is_on_device() ? step.on_device : step.run), &node});
  }
  return Status();
}

// Both what is read and what is created counts: an expanded view shows far more elements than there are in memory.
bool ProgramBuilder::worth_folding(const Node& node) {
  std::size_t bytes = 0;
  for (const StorageId storage : pending_storages_) bytes += storages_[static_cast<std::size_t>(storage)].bytes;
  if (bytes > kFoldLimit) return false;
  auto work = static_cast<std::int64_t>(bytes);
  for_each_input(node, [&](ValueId id) { work = std::min(work + tensor(id).count(), kMostFoldWork + 1); });
  if (work > kMostFoldWork || fold_work_ + work > kMostFoldWorkInAll) return false;
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
  ThreadPool alone(1);
  const Execution execution{program_.bases, alone, {}};
  for (const PendingStep& step : pending_) ACCORD_RETURN_IF_ERROR(step.run(execution));
  return Status();
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
  if (is_on_device()) {
    program_.steps.push_back({convert_on_device(made, whole), nullptr});
  } else {
    const Step copy = [from = made, whole](const Execution& execution) {
      return kernels::copy_strided(execution.read(from), execution.write(whole));
    };
    program_.steps.push_back({copy, nullptr});
  }
  program_.outputs.push_back(whole);
  return Status();
}

// Copies the constants to the device and replaces the addresses, which until here are those that the CPU folded with.
Status ProgramBuilder::place_on_device() {
  constexpr std::size_t kAligned = 256;
  const auto is_copied = [](const Storage& storage) { return storage.kind == StorageKind::kConstant; };
  std::size_t bytes = 0;
  for (const Storage& storage : storages_) {
    if (is_copied(storage)) bytes += round_up(storage.bytes, kAligned);
  }
  ACCORD_ASSIGN_OR_RETURN(device::Runtime* const runtime, device::runtime_of(source_.device.type));
  ACCORD_ASSIGN_OR_RETURN(program_.device_constants,
                          DeviceMemory::allocate(*runtime, source_.device, bytes, "constants of a program"));
  std::vector<std::byte> all(bytes);
  std::size_t at = 0;
  for (std::size_t id = 0; id < storages_.size(); ++id) {
    const Storage& storage = storages_[id];
    if (!is_copied(storage)) continue;
    std::copy_n(storage.base, storage.bytes, all.begin() + static_cast<std::ptrdiff_t>(at));
    program_.bases[id] = program_.device_constants.data() + at;
    at += round_up(storage.bytes, kAligned);
  }
  for (std::size_t i = 0; i < source_.graph.parameters.size(); ++i) {
    const StorageId storage = tensor(source_.graph.parameters[i].value).storage;
    program_.bases[static_cast<std::size_t>(storage)] = source_.parameters.memory[i].on_device;
  }
  program_.constants.clear();
  if (bytes == 0) return Status();
  ACCORD_RETURN_IF_ERROR(runtime->copy(program_.device_constants.data(), all.data(), bytes, source_.device, {}));
  return runtime->synchronize(source_.device, {});
}

void ProgramBuilder::plan_arena() {
  std::vector<Lifetime> lifetimes;
  for (std::size_t id = 0; id < storages_.size(); ++id) {
    const Storage& storage = storages_[id];
    if (storage.kind != StorageKind::kArena) continue;
    lifetimes.push_back({storage.bytes, storage.made_at, storage.last_use});
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

}  // namespace accord::engine
