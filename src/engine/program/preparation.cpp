// Arguments arrive as they are in the graph. Symbols are replaced by this run's numbers here and nowhere else.
#include "engine/program/preparation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "accord/engine.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/program/calls.hpp"
#include "engine/program/program_builder.hpp"
#include "kernels/index.hpp"

namespace accord::engine {
namespace {

bool same_order(const kernels::Layout& a, const kernels::Layout& b) {
  return (a.is_contiguous() && b.is_contiguous()) || (is_channels_last(a) && is_channels_last(b));
}

std::size_t index_of(ValueId id) { return static_cast<std::size_t>(id); }

}  // namespace

Result<RowTensor> rows_of(Preparation& op, const Tensor& tensor) {
  ACCORD_RETURN_IF_ERROR(op.require(tensor, {DType::kFloat32, DType::kBFloat16, DType::kFloat16}));
  if (const auto rows = as_rows(tensor.layout)) return RowTensor{tensor, *rows};
  ACCORD_ASSIGN_OR_RETURN(const Tensor whole, op.contiguous(tensor));
  return RowTensor{whole, *as_rows(whole.layout)};
}

Status Preparation::unsupported(std::string_view why) const {
  std::string inputs;
  for_each_input(node_, [&](ValueId id) {
    const Tensor& input = builder_.tensor(id);
    inputs +=
        fmt::format("{}{} {}", inputs.empty() ? " (of " : ", ", to_string(input.dtype), sizes_text(input.sizes()));
  });
  if (!inputs.empty()) inputs += ")";
  return Status(StatusCode::kUnsupported, fmt::format("{}: {}{}", node_text(node_), why, inputs));
}

Status Preparation::corrupt(std::string_view why) const {
  return Status(StatusCode::kCorrupt, fmt::format("{}: {}", node_text(node_), why));
}

int Preparation::threads() const { return builder_.source().threads; }

kernels::Arithmetic Preparation::arithmetic(DType dtype, const kernels::PackedFormat& weights) const {
  if (weights.has_integers() && builder_.source().activation_dtype) return kernels::Arithmetic::kInt8;
  return dtype == DType::kBFloat16 ? kernels::Arithmetic::kBFloat16 : kernels::Arithmetic::kFloat32;
}

int Preparation::ranks_with_codes(int group) const {
  const std::vector<int>& ranks = builder_.source().ranks_with_codes;
  return ranks.empty() ? 0 : ranks[static_cast<std::size_t>(group)];
}

bool Preparation::has(std::string_view name) const { return find_argument(node_, name) != nullptr; }

bool Preparation::is_tensor(std::string_view name) const { return tensor_argument(node_, name).has_value(); }

Result<Tensor> Preparation::tensor(std::string_view name) {
  const auto id = tensor_argument(node_, name);
  if (!id) return corrupt(fmt::format("argument \"{}\" is not a tensor", name));
  return as_op_dtype(builder_.tensor(*id));
}

Result<Tensor> Preparation::tensor_as_output(std::string_view name) {
  const auto id = tensor_argument(node_, name);
  if (!id) return corrupt(fmt::format("argument \"{}\" is not a tensor", name));
  const DType declared = builder_.source().graph.values[index_of(node_.outputs.front())].dtype;
  ACCORD_ASSIGN_OR_RETURN(const Tensor rounded, converted(builder_.tensor(*id), declared));
  return as_op_dtype(rounded);
}

DType Preparation::op_dtype(DType dtype) const {
  return kernels::is_narrow_float(dtype) && narrow_ == kernels::NarrowFloats::kAsFloat32 ? DType::kFloat32 : dtype;
}

Result<Tensor> Preparation::as_op_dtype(const Tensor& tensor) { return converted(tensor, op_dtype(tensor.dtype)); }

Status Preparation::round_outputs() {
  for (std::size_t output = 0; output < node_.outputs.size(); ++output) {
    const ValueId id = node_.outputs[output];
    const DType declared = builder_.source().graph.values[index_of(id)].dtype;
    if (!builder_.is_used(id) || !builder_.is_set(id) || op_dtype(declared) == declared) continue;
    const Tensor made = builder_.tensor(id);
    if (made.dtype != DType::kFloat32) continue;
    ACCORD_ASSIGN_OR_RETURN(const Tensor rounded, builder_.make(declared, made.sizes(), made.layout));
    ACCORD_RETURN_IF_ERROR(add(ConvertCall{made, rounded}));
    builder_.set(id, rounded);
  }
  return Status();
}

Result<std::optional<Tensor>> Preparation::maybe_tensor(std::string_view name) {
  if (!has(name)) return std::optional<Tensor>();
  ACCORD_ASSIGN_OR_RETURN(const Tensor found, tensor(name));
  return std::optional<Tensor>(found);
}

Result<std::vector<std::optional<Tensor>>> Preparation::tensors(std::string_view name) {
  const Argument* argument = find_argument(node_, name);
  const auto* refs = argument == nullptr ? nullptr : std::get_if<std::vector<ValueRef>>(argument);
  if (refs == nullptr) return corrupt(fmt::format("argument \"{}\" is not a list of tensors", name));
  std::vector<std::optional<Tensor>> found;
  for (const ValueRef& ref : *refs) {
    if (ref.id < 0) {
      found.emplace_back();
      continue;
    }
    ACCORD_ASSIGN_OR_RETURN(const Tensor tensor, as_op_dtype(builder_.tensor(ref.id)));
    found.emplace_back(tensor);
  }
  return found;
}

Result<std::int64_t> Preparation::integer(std::string_view name, std::optional<std::int64_t> default_value) const {
  const Argument* argument = find_argument(node_, name);
  if (argument == nullptr) {
    if (default_value) return *default_value;
    return corrupt(fmt::format("argument \"{}\" is missing", name));
  }
  if (const auto* flag = std::get_if<bool>(argument)) return std::int64_t{*flag};
  const auto* number = std::get_if<SymbolicInt>(argument);
  if (number == nullptr) return corrupt(fmt::format("argument \"{}\" is not a whole number", name));
  return number->evaluate(builder_.symbols());
}

Result<Sizes> Preparation::integers(std::string_view name) const {
  Sizes numbers;
  const Argument* argument = find_argument(node_, name);
  if (argument == nullptr) return numbers;
  if (std::holds_alternative<SymbolicInt>(*argument)) {
    ACCORD_ASSIGN_OR_RETURN(numbers.emplace_back(), integer(name));
    return numbers;
  }
  if (const auto* refs = std::get_if<std::vector<ValueRef>>(argument); refs != nullptr && refs->empty()) return numbers;
  const auto* list = std::get_if<std::vector<SymbolicInt>>(argument);
  if (list == nullptr) return corrupt(fmt::format("argument \"{}\" is not a list of whole numbers", name));
  for (const SymbolicInt& number : *list) {
    ACCORD_ASSIGN_OR_RETURN(numbers.emplace_back(), number.evaluate(builder_.symbols()));
  }
  return numbers;
}

Result<double> Preparation::real(std::string_view name, std::optional<double> default_value) const {
  if (!has(name) && default_value) return *default_value;
  ACCORD_ASSIGN_OR_RETURN(const kernels::Scalar number, scalar(name));
  return number.real;
}

Result<bool> Preparation::flag(std::string_view name, bool default_value) const {
  return flag_argument(node_, name, default_value);
}

Result<std::string> Preparation::text(std::string_view name, std::string default_value) const {
  const Argument* argument = find_argument(node_, name);
  if (argument == nullptr) return default_value;
  const auto* found = std::get_if<std::string>(argument);
  if (found == nullptr) return corrupt(fmt::format("argument \"{}\" is not a string", name));
  return *found;
}

Result<int> Preparation::choice(std::string_view name, std::initializer_list<std::string_view> names) const {
  const Argument* argument = find_argument(node_, name);
  if (argument == nullptr) return 0;
  const auto* given = std::get_if<std::string>(argument);
  const auto found = given == nullptr ? names.end() : std::find(names.begin(), names.end(), *given);
  if (found == names.end()) return corrupt(fmt::format("argument \"{}\" is not one of its known values", name));
  return static_cast<int>(found - names.begin());
}

Result<kernels::Scalar> Preparation::scalar(std::string_view name, std::optional<kernels::Scalar> default_value) const {
  const Argument* argument = find_argument(node_, name);
  if (argument == nullptr && default_value) return *default_value;
  if (const auto* number = std::get_if<double>(argument)) return kernels::Scalar::of(*number);
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, integer(name));
  return kernels::Scalar::of(number);
}

DType Preparation::scalar_dtype(std::string_view name) const {
  const Argument* argument = find_argument(node_, name);
  if (argument != nullptr && std::holds_alternative<double>(*argument)) return DType::kFloat32;
  return argument != nullptr && std::holds_alternative<bool>(*argument) ? DType::kBool : DType::kInt64;
}

Result<int> Preparation::dimension(std::string_view name, int dims, std::optional<std::int64_t> default_value) const {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t given, integer(name, default_value));
  return dimension_index(node_, given, dims);
}

Result<std::vector<int>> Preparation::dimensions(std::string_view name, int dims) const {
  ACCORD_ASSIGN_OR_RETURN(const Sizes given, integers(name));
  std::vector<int> found;
  for (const std::int64_t number : given) {
    ACCORD_ASSIGN_OR_RETURN(const int dim, dimension_index(node_, number, dims));
    if (std::find(found.begin(), found.end(), dim) != found.end()) {
      return corrupt(fmt::format("dimension {} occurs twice", number));
    }
    if (dims > 0) found.push_back(dim);
  }
  return found;
}

const kernels::PackedMatrix* Preparation::packed_linear(std::string_view name) const {
  const auto id = tensor_argument(node_, name);
  const ParameterMemory* memory = id ? builder_.parameter(*id) : nullptr;
  return memory != nullptr && memory->linear ? &*memory->linear : nullptr;
}

std::vector<const kernels::PackedMatrix*> Preparation::packed_linears(std::string_view name) const {
  std::vector<const kernels::PackedMatrix*> found;
  const Argument* argument = find_argument(node_, name);
  const auto* refs = argument == nullptr ? nullptr : std::get_if<std::vector<ValueRef>>(argument);
  if (refs == nullptr) return found;
  for (const ValueRef& ref : *refs) {
    const ParameterMemory* memory = ref.id < 0 ? nullptr : builder_.parameter(ref.id);
    found.push_back(memory != nullptr && memory->linear ? &*memory->linear : nullptr);
  }
  return found;
}

const kernels::PackedMatrix* Preparation::packed_product(std::string_view name) const {
  const auto id = tensor_argument(node_, name);
  const ParameterMemory* memory = id ? builder_.parameter(*id) : nullptr;
  return memory != nullptr && memory->product ? &*memory->product : nullptr;
}

const PackedStack* Preparation::packed_experts(std::string_view name) const {
  const auto id = tensor_argument(node_, name);
  const ParameterMemory* memory = id ? builder_.parameter(*id) : nullptr;
  return memory != nullptr && memory->experts ? &*memory->experts : nullptr;
}

const PackedStack* Preparation::packed_convolution(std::string_view name) const {
  const auto id = tensor_argument(node_, name);
  const ParameterMemory* memory = id ? builder_.parameter(*id) : nullptr;
  return memory != nullptr && memory->convolution ? &*memory->convolution : nullptr;
}

Result<std::optional<int>> Preparation::group(std::string_view name) const {
  ACCORD_ASSIGN_OR_RETURN(const std::string group, text(name, ""));
  const auto found = builder_.source().group_index.find(group);
  return found == builder_.source().group_index.end() ? std::nullopt : std::optional<int>(found->second);
}

bool Preparation::output_used(std::size_t output) const {
  return output < node_.outputs.size() && builder_.is_used(node_.outputs[output]);
}

DType Preparation::declared_dtype(std::size_t output) const {
  return op_dtype(builder_.source().graph.values[index_of(node_.outputs[output])].dtype);
}

Result<Sizes> Preparation::declared_sizes(std::size_t output) const {
  return builder_.evaluate(builder_.source().graph.values[index_of(node_.outputs[output])].shape);
}

Result<Tensor> Preparation::make(std::size_t output, const Sizes& sizes) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor made, builder_.make(declared_dtype(output), sizes));
  builder_.set(node_.outputs[output], made);
  return made;
}

Result<Tensor> Preparation::make_in_place(std::size_t output, const Sizes& sizes,
                                          std::initializer_list<Tensor> candidates) {
  for (const Tensor& candidate : candidates) {
    const bool dense = candidate.layout.is_contiguous() || is_channels_last(candidate.layout);
    const bool whole =
        dense && candidate.sizes() == sizes && candidate.dtype == declared_dtype(output) && candidate.offset == 0;
    if (!whole || !builder_.is_last_use(candidate)) continue;
    // Another input may show the same memory in another order.
    bool has_other_view = false;
    for_each_input(node_, [&](ValueId id) {
      if (builder_.tensor(id).storage != candidate.storage) return;
      const Tensor& input = builder_.tensor(id);
      has_other_view =
          has_other_view || input.offset != 0 || input.sizes() != sizes || !same_order(input.layout, candidate.layout);
    });
    if (has_other_view) continue;
    builder_.set(node_.outputs[output], candidate);
    return candidate;
  }
  return make_like(output, sizes, {candidates.begin(), candidates.size()});
}

Result<Tensor> Preparation::make_like(std::size_t output, const Sizes& sizes, std::span<const Tensor> inputs) {
  static constexpr int kChannelsLast[] = {0, 2, 3, 1};
  const bool ordered = sizes.size() == 4 && std::any_of(inputs.begin(), inputs.end(), [](const Tensor& input) {
                         return is_channels_last(input.layout) && !input.layout.is_contiguous();
                       });
  return ordered ? make_ordered(output, sizes, kChannelsLast) : make(output, sizes);
}

Result<Tensor> Preparation::make_ordered(std::size_t output, const Sizes& sizes, std::span<const int> order) {
  Sizes in_memory;
  for (const int dim : order) in_memory.push_back(sizes[static_cast<std::size_t>(dim)]);
  const kernels::Layout memory = kernels::contiguous_layout(in_memory);
  Sizes strides(sizes.size());
  for (std::size_t i = 0; i < order.size(); ++i) strides[static_cast<std::size_t>(order[i])] = memory.strides[i];
  ACCORD_ASSIGN_OR_RETURN(const Tensor made,
                          builder_.make(declared_dtype(output), sizes, kernels::strided_layout(sizes, strides)));
  builder_.set(node_.outputs[output], made);
  return made;
}

void Preparation::alias(std::size_t output, Tensor tensor) { builder_.set(node_.outputs[output], tensor); }

const Tensor& Preparation::made(std::size_t output) const { return builder_.tensor(node_.outputs[output]); }

Result<Tensor> Preparation::scratch(DType dtype, const Sizes& sizes) { return builder_.make(dtype, sizes); }

Result<Tensor> Preparation::constant(kernels::Scalar value, DType dtype) {
  alignas(16) std::byte bytes[16] = {};
  ACCORD_RETURN_IF_ERROR(kernels::fill(value, {bytes, dtype, kernels::contiguous_layout({})}));
  return builder_.make_constant(dtype, {}, std::span<const std::byte>(bytes, size_of(dtype)));
}

Tensor Preparation::constant(DType dtype, const Sizes& sizes, std::span<const std::byte> bytes) {
  return builder_.make_constant(dtype, sizes, bytes);
}

Result<Tensor> Preparation::contiguous(const Tensor& tensor) {
  if (tensor.layout.is_contiguous()) return tensor;
  ACCORD_ASSIGN_OR_RETURN(const Tensor whole, builder_.make(tensor.dtype, tensor.sizes()));
  ACCORD_RETURN_IF_ERROR(add(ConvertCall{tensor, whole}));
  return whole;
}

Result<Tensor> Preparation::converted(const Tensor& tensor, DType dtype) {
  if (tensor.dtype == dtype) return tensor;
  if (const std::byte* const known = builder_.known_bytes(tensor)) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.count()) * size_of(dtype));
    const kernels::View to{bytes.data(), dtype, kernels::contiguous_layout(tensor.sizes())};
    ACCORD_RETURN_IF_ERROR(kernels::convert({known, tensor.dtype, tensor.layout}, to));
    return builder_.make_constant(dtype, tensor.sizes(), bytes);
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor other, builder_.make(dtype, tensor.sizes()));
  ACCORD_RETURN_IF_ERROR(add(ConvertCall{tensor, other}));
  return other;
}

Status Preparation::set_batch_rows(std::int64_t rows) {
  return builder_.set_batch_rows(rows)
             ? Status()
             : unsupported("the attention layers of the graph have different numbers of tokens");
}

std::vector<Step> Preparation::exchange_steps(std::vector<Step> steps) {
  return builder_.exchange_steps(std::move(steps));
}

Step Preparation::joined(std::vector<Step> steps) {
  if (steps.size() == 1) return std::move(steps.front());
  return [steps = std::move(steps)](const Execution& execution) {
    for (const Step& step : steps) ACCORD_RETURN_IF_ERROR(step(execution));
    return Status();
  };
}

void Preparation::step(Step run) { builder_.add_step(std::move(run)); }

void Preparation::run_always() { builder_.forbid_folding(); }

Status Preparation::no_steps() const {
  return Status(StatusCode::kUnsupported,
                fmt::format("{}: this op has no kernel for {}", node_text(node_), to_string(device())));
}

Device Preparation::device() const { return builder_.source().target.device(); }
bool Preparation::is_canonical() const { return builder_.source().canonical; }
bool Preparation::multiplies_together(std::int64_t rows) const {
  return builder_.source().target.multiplies_together(rows);
}
bool Preparation::is_own_product(const Tensor& weight) const {
  const std::map<std::string, int>& groups = builder_.source().group_index;
  const std::size_t others = groups.size() - groups.count(kStageGroup);  // other stages have other layers
  return others == 0 || (others == 1 && builder_.is_sharded(weight));
}
std::optional<DType> Preparation::activation_dtype() const { return builder_.source().activation_dtype; }

Status Preparation::require(const Tensor& tensor, std::initializer_list<DType> dtypes) const {
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) != dtypes.end()) return Status();
  return unsupported(fmt::format("this op has no kernel for {}", to_string(tensor.dtype)));
}

}  // namespace accord::engine
