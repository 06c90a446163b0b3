// Mixtures of experts on GPUs. The rows of a run are sorted by the experts that they chose, and products process
// tiles of rows of one expert each. The GPU lists the tiles; the host does not know how many there are. The experts'
// results for a row are added up in the order of its choices. Choices of experts on other ranks are skipped.
#include "engine/ops/experts.hpp"

#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/expert_product.hpp"
#include "engine/gpu/float8_products.hpp"
#include "engine/gpu/index.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"

namespace accord::engine {
namespace {

template <int kRows>
Status launch_few_row_tiles(const DeviceRun& run, const ExpertProduct& product) {
  constexpr std::int64_t kOutputsOfBlock = 8;  // one per warp
  const std::int64_t blocks = ceil_divide(product.tile_count * product.call.n, kOutputsOfBlock);
  if (product.call.weight.scales != nullptr)
    return launch_blocks(run, ExpertsFewRows<kRows, WeightKind::kFloat8>{product}, blocks);
  return launch_blocks(run, ExpertsFewRows<kRows, WeightKind::kSameAsRows>{product}, blocks);
}

template <DType kDType, WeightKind kWeights>
Status launch_many_row_tiles(const DeviceRun& run, const ExpertProduct& product) {
  using Plain = ExpertsManyRows<kDType, false, kWeights>;
  using Gated = ExpertsManyRows<kDType, true, kWeights>;
  if (product.call.gate.data == nullptr)
    return launch_blocks(run, Plain{product}, Plain{product}.blocks(), Plain::kSharedBytes);
  return launch_blocks(run, Gated{product}, Gated{product}.blocks(), Gated::kSharedBytes);
}

template <DType kDType>
Status launch_many_row_tiles(const DeviceRun& run, const ExpertProduct& product) {
  return product.call.weight.scales != nullptr ? launch_many_row_tiles<kDType, WeightKind::kFloat8>(run, product)
                                               : launch_many_row_tiles<kDType, WeightKind::kSameAsRows>(run, product);
}

}  // namespace

Status launch_tiles(const DeviceRun& run, const ExpertProduct& product, std::int64_t tile_rows) {
  switch (tile_rows) {
    case 1: return launch_few_row_tiles<1>(run, product);
    case 2: return launch_few_row_tiles<2>(run, product);
    case 4: return launch_few_row_tiles<4>(run, product);
    case kFewRows: return launch_few_row_tiles<kFewRows>(run, product);
    default: break;
  }
  switch (product.call.dtype) {
    case DType::kBFloat16: return launch_many_row_tiles<DType::kBFloat16>(run, product);
    case DType::kFloat16: return launch_many_row_tiles<DType::kFloat16>(run, product);
    default: return launch_many_row_tiles<DType::kFloat32>(run, product);
  }
}

namespace gpu {
namespace {

/// Choices [tokens, top_k] of experts, some of which are on this rank, and the result of sorting the choices.
struct Sorting {
  Tensor ids;
  std::int64_t first_expert = 0, experts = 0, in_all = 0;
  std::int64_t tile_rows = 1;
  Tensor tokens, places, tiles;  ///< as in GroupChoices; tiles as bytes
  std::int64_t tile_count = 0;
};

GroupChoices grouping_kernel(const Sorting& sorting) {
  GroupChoices kernel;
  kernel.id_dtype = sorting.ids.dtype;
  kernel.choices = sorting.ids.count();
  kernel.top_k = sorting.ids.size(1);
  kernel.first_expert = sorting.first_expert;
  kernel.experts = sorting.experts;
  kernel.total_experts = sorting.in_all;
  kernel.tile_rows = sorting.tile_rows;
  return kernel;
}

// Where experts have a few rows each, it matters most that their weights are read only once. More rows are multiplied
// as matrices.
std::int64_t tile_rows_of(std::int64_t tokens, std::int64_t choices, std::int64_t experts) {
  if (tokens > kFewRows && choices > kFewRows / 2 * experts) return kManyRows;
  std::int64_t rows = 1;
  while (rows < tokens && rows < kFewRows) rows *= 2;
  return rows;
}

Status add_sorting(Preparation& op, Sorting& sorting) {
  const std::int64_t choices = sorting.ids.count();
  sorting.tile_count = grouping_kernel(sorting).tile_count();
  ACCORD_ASSIGN_OR_RETURN(sorting.tokens, op.scratch(DType::kInt64, {choices}));
  ACCORD_ASSIGN_OR_RETURN(sorting.places, op.scratch(DType::kInt64, {choices}));
  constexpr auto kTileBytes = static_cast<std::int64_t>(sizeof(ExpertTile));
  ACCORD_ASSIGN_OR_RETURN(sorting.tiles, op.scratch(DType::kUInt8, {sorting.tile_count * kTileBytes}));
  op.step([sorting, node = &op.node()](const Execution& execution) {
    GroupChoices placed = grouping_kernel(sorting);
    placed.ids = execution.address(sorting.ids);
    placed.tokens = execution.data<std::int64_t>(sorting.tokens);
    placed.places = execution.data<std::int64_t>(sorting.places);
    placed.tiles = execution.data<ExpertTile>(sorting.tiles);
    placed.report = report_of(device_run(execution), node);
    return launch_blocks(device_run(execution), placed, placed.experts, GroupChoices::kThreads * sizeof(std::int32_t));
  });
  return Status();
}

// Returns the rows of the input in sorted order. A single row is not copied: all its experts read it where it is,
// with a row stride of 0.
Result<Tensor> sorted_rows(Preparation& op, const Tensor& input, const Sorting& sorting) {
  const Sizes sizes = {sorting.ids.count(), input.size(1)};
  if (input.size(0) == 1) {
    Tensor same = input;
    const Sizes strides = {0, 1};
    same.layout = kernels::strided_layout(sizes, strides);
    return same;
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor rows, op.scratch(input.dtype, sizes));
  // Choices that are not this rank's look up a row that counts as another rank's row of the table, which gives zeros.
  const RowLookup lookup{sorting.tokens, input, rows, input.size(1), 0, input.size(0) + 1};
  op.step(gather_rows_step(&op.node(), lookup));
  return rows;
}

/// y = x * weight^T, or activation(x * weight^T), or activation(x * gate^T) * (x * weight^T), for sorted rows, each
/// with the weights of its expert.
struct ExpertLayer {
  Tensor weight;  ///< [experts, out, in], contiguous, like the gate
  std::optional<Tensor> gate;
  kernels::Activation activation = kernels::Activation::kNone;
};

void add_expert_product(Preparation& op, const ExpertLayer& layer, const Sorting& sorting, const Tensor& x,
                        const Tensor& y) {
  const auto bytes_of = [](const Tensor& rows) { return static_cast<std::int64_t>(size_of(rows.dtype)); };
  ExpertProduct kernel;
  ProductCall& call = kernel.call;
  call.dtype = x.dtype;
  call.n = layer.weight.size(1);
  call.k = layer.weight.size(2);
  call.x_row_bytes = x.stride(0) * bytes_of(x);
  call.activation = layer.activation;
  call.y_dtype = y.dtype;
  kernel.tile_count = sorting.tile_count;
  kernel.weight_bytes = call.n * call.k * bytes_of(layer.weight);
  kernel.y_row_bytes = call.n * bytes_of(y);
  op.step([=](const Execution& execution) {
    ExpertProduct placed = kernel;
    placed.tiles = execution.data<const ExpertTile>(sorting.tiles);
    placed.call.x = execution.address(x);
    placed.call.weight = weight_operand(execution, layer.weight);
    if (layer.gate) placed.call.gate = weight_operand(execution, *layer.gate);
    placed.call.y = execution.address(y);
    return launch_tiles(device_run(execution), placed, sorting.tile_rows);
  });
}

void add_combination(Preparation& op, const ExpertsCall& call, const Sorting& sorting, const Tensor& made) {
  op.step([sorting, made, output = call.y, weights = call.weights, adds = call.adds](const Execution& execution) {
    CombineChoices kernel;
    kernel.rows = output.size(0);
    kernel.top_k = sorting.ids.size(1);
    kernel.width = output.size(1);
    if (weights) kernel.weights = execution.data<const float>(*weights);
    kernel.adds = adds;
    kernel.places = execution.data<const std::int64_t>(sorting.places);
    kernel.results = execution.data<const float>(made);
    kernel.y = execution.address(output);
    kernel.y_dtype = output.dtype;
    return launch_over(device_run(execution), kernel, output.count());
  });
}

/// The results of up and gate, from which inner values are made.
struct GateWork {
  kernels::GateOptions options;
  Tensor up;
  std::optional<Tensor> gate, up_bias, gate_bias;
  Tensor inner;
};

void add_gate(Preparation& op, const GateWork& work, const Sorting& sorting) {
  op.step([=](const Execution& execution) {
    const auto floats_of = [&](const std::optional<Tensor>& tensor) {
      return tensor ? execution.data<const float>(*tensor) : nullptr;
    };
    GateChoices kernel;
    kernel.choices = sorting.ids.count();
    kernel.width = work.up.size(1);
    kernel.first_expert = sorting.first_expert;
    kernel.ids = execution.address(sorting.ids);
    kernel.id_dtype = sorting.ids.dtype;
    kernel.places = execution.data<const std::int64_t>(sorting.places);
    kernel.options = work.options;
    kernel.up_bias = floats_of(work.up_bias);
    kernel.gate_bias = floats_of(work.gate_bias);
    kernel.up = execution.data<const float>(work.up);
    kernel.gate = floats_of(work.gate);
    kernel.inner = execution.address(work.inner);
    kernel.inner_dtype = work.inner.dtype;
    return launch_over(device_run(execution), kernel, kernel.choices * kernel.width);
  });
}

// Adds the products and the gate that make the inner values of sorted rows.
Status add_inner_values(Preparation& op, const Experts& experts, const Sorting& sorting, const Tensor& rows,
                        const Tensor& inner) {
  ExpertLayer up{experts.up.tensor, {}, experts.options.activation};
  if (experts.has_plain_gate()) {
    if (experts.gate) up.gate = experts.gate->tensor;
    add_expert_product(op, up, sorting, rows, inner);
    return Status();
  }
  up.activation = kernels::Activation::kNone;
  GateWork work{experts.options, {}, {}, experts.up_bias, experts.gate_bias, inner};
  ACCORD_ASSIGN_OR_RETURN(work.up, op.scratch(DType::kFloat32, inner.sizes()));
  add_expert_product(op, up, sorting, rows, work.up);
  if (experts.gate) {
    ACCORD_ASSIGN_OR_RETURN(work.gate, op.scratch(DType::kFloat32, inner.sizes()));
    add_expert_product(op, {experts.gate->tensor, {}, kernels::Activation::kNone}, sorting, rows, *work.gate);
  }
  add_gate(op, work, sorting);
  return Status();
}

// Fails unless the kernels for products multiply rows of `dtype` with these weights.
Status check_expert_weights(const Preparation& op, const Experts& experts, DType dtype) {
  for (const ExpertWeights& weights : {experts.up, experts.down, experts.gate.value_or(experts.up)}) {
    const Tensor& weight = weights.tensor;
    if (weight.dtype != dtype && !is_float8(weight))
      return op.unsupported("its rows and its experts have different dtypes");
    if (!weight.layout.is_contiguous()) return op.unsupported("the weights of its experts are not contiguous");
  }
  if (experts.gate && experts.gate->tensor.scale_group != experts.up.tensor.scale_group)
    return op.unsupported("its two weights have scales of different groups");
  return Status();
}

Status add_experts(Preparation& op, const ExpertsCall& call) {
  const Experts& experts = call.experts;
  ACCORD_RETURN_IF_ERROR(check_expert_weights(op, experts, call.input.dtype));
  const Tensor& up = experts.up.tensor;
  const ExpertLayer down{experts.down.tensor, {}, kernels::Activation::kNone};
  const std::int64_t choices = call.ids.count();
  Sorting sorting;
  sorting.ids = call.ids;
  sorting.first_expert = call.first_expert;
  sorting.experts = up.size(0);
  sorting.in_all = call.experts_in_all;
  sorting.tile_rows = tile_rows_of(call.input.size(0), choices, sorting.in_all);
  ACCORD_RETURN_IF_ERROR(add_sorting(op, sorting));
  ACCORD_ASSIGN_OR_RETURN(const Tensor rows, sorted_rows(op, call.input, sorting));
  ACCORD_ASSIGN_OR_RETURN(const Tensor inner, op.scratch(call.input.dtype, {choices, up.size(1)}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor made, op.scratch(DType::kFloat32, {choices, call.y.size(1)}));
  ACCORD_RETURN_IF_ERROR(add_inner_values(op, experts, sorting, rows, inner));
  add_expert_product(op, down, sorting, inner, made);
  add_combination(op, call, sorting, made);
  return Status();
}

}  // namespace

void set_expert_steps(StepTable& table) { table.set<ExpertsCall>(add_experts); }

}  // namespace gpu
}  // namespace accord::engine
