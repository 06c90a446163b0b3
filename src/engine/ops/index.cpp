// Ops that pick elements by index, and concatenation.
#include "engine/ops/index.hpp"

#include "engine/ops/op_registry.hpp"
#include "engine/program/calls.hpp"
#include "kernels/index.hpp"

namespace accord::engine {
namespace {

Status prepare_embedding(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor table, op.tensor("weight"));
  if (table.dims() != 2) return op.corrupt("its table does not have two dimensions");
  const auto rows = as_rows(table.layout);
  if (!rows) return op.unsupported("the rows of its table are not contiguous");
  ACCORD_ASSIGN_OR_RETURN(const Tensor ids, op.tensor("indices"));
  ACCORD_RETURN_IF_ERROR(op.require(ids, {DType::kInt32, DType::kInt64}));
  RowLookup lookup;
  lookup.table = table;
  lookup.table_row_stride = rows->stride;
  ACCORD_ASSIGN_OR_RETURN(lookup.ids, op.contiguous(ids));
  Sizes sizes = ids.sizes();
  sizes.push_back(table.size(1));
  ACCORD_ASSIGN_OR_RETURN(lookup.y, op.make(0, sizes));
  ACCORD_ASSIGN_OR_RETURN(lookup.first_row, op.integer("first_row", 0));
  ACCORD_ASSIGN_OR_RETURN(lookup.total_rows, op.integer("rows_in_all", table.size(0)));
  return op.add(EmbeddingCall{lookup, op.packed_linear("weight")});
}

Status prepare_gather(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor index, op.tensor("index"));
  ACCORD_RETURN_IF_ERROR(op.require(index, {DType::kInt32, DType::kInt64}));
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims()));
  if (self.dims() == 0) return op.unsupported("gather has no kernel for a scalar");
  if (self.dims() != index.dims()) return op.corrupt("its index and its input differ in their number of dimensions");
  for (int i = 0; i < self.dims(); ++i) {
    if (i != dim && index.size(i) > self.size(i)) return op.corrupt("its index is larger than its input");
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, index.sizes()));
  ACCORD_RETURN_IF_ERROR(op.require(y, {self.dtype}));
  return op.add(GatherElementsCall{self, dim, index, y});
}

Status prepare_concatenate(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const auto given, op.tensors("tensors"));
  std::vector<Tensor> inputs;
  for (const auto& input : given) {
    if (!input) return op.corrupt("one of its inputs is missing");
    // PyTorch ignores an empty tensor of one dimension.
    if (input->dims() == 1 && input->count() == 0) continue;
    ACCORD_ASSIGN_OR_RETURN(inputs.emplace_back(), op.converted(*input, op.declared_dtype()));
  }
  if (inputs.empty()) return op.corrupt("it has no inputs");
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", inputs[0].dims(), 0));
  Sizes sizes = inputs[0].sizes();
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    if (inputs[i].dims() != inputs[0].dims()) return op.corrupt("its inputs differ in their number of dimensions");
    for (int other = 0; other < inputs[0].dims(); ++other) {
      if (other != dim && inputs[i].size(other) != inputs[0].size(other))
        return op.corrupt("its inputs differ in sizes");
    }
    sizes[static_cast<std::size_t>(dim)] += inputs[i].size(dim);
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_like(0, sizes, inputs));
  // One copy per input into its slice of the output, so that no list of views is built on each run.
  std::int64_t first = 0;
  for (const Tensor& input : inputs) {
    Tensor slice = y;
    slice.offset += first * y.stride(dim) * static_cast<std::int64_t>(size_of(y.dtype));
    slice.layout.sizes[static_cast<std::size_t>(dim)] = input.size(dim);
    first += input.size(dim);
    ACCORD_RETURN_IF_ERROR(op.add(ConvertCall{input, slice}));
  }
  return Status();
}

Status add_pick(Preparation& op, const Tensor& self, std::vector<Tensor> ids, int first, FromEnd from_end) {
  PickCall call;
  call.first = first;
  call.from_end = from_end;
  for (const Tensor& one : ids) {
    ACCORD_RETURN_IF_ERROR(op.require(one, {DType::kInt32, DType::kInt64}));
    const auto dims = static_cast<std::size_t>(one.dims());
    Sizes& picked = call.picked;
    if (dims > picked.size()) picked.insert(picked.begin(), dims - picked.size(), 1);
    for (std::size_t i = 0; i < dims; ++i) {
      std::int64_t& size = picked[picked.size() - dims + i];
      if (size == 1) size = one.layout.sizes[i];
      if (one.layout.sizes[i] != 1 && one.layout.sizes[i] != size) return op.corrupt("its indices do not broadcast");
    }
  }
  for (Tensor& one : ids) {
    ACCORD_ASSIGN_OR_RETURN(one.layout, kernels::broadcast_layout(one.layout, call.picked));
  }
  ACCORD_ASSIGN_OR_RETURN(call.x, op.contiguous(self));
  Sizes sizes = self.sizes();
  const auto begin = sizes.begin() + first;
  const auto rest = sizes.erase(begin, begin + static_cast<std::ptrdiff_t>(ids.size()));
  sizes.insert(rest, call.picked.begin(), call.picked.end());
  call.ids = std::move(ids);
  ACCORD_ASSIGN_OR_RETURN(call.y, op.make(0, sizes));
  ACCORD_RETURN_IF_ERROR(op.require(call.y, {call.x.dtype}));
  return op.add(call);
}

Status prepare_index(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const auto given, op.tensors("indices"));
  std::vector<Tensor> ids;
  int first = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) continue;
    if (ids.empty()) first = static_cast<int>(i);
    if (first + static_cast<int>(ids.size()) != static_cast<int>(i)) {
      return op.unsupported("indices of dimensions that are not adjacent have no kernel");
    }
    ids.push_back(*given[i]);
  }
  if (ids.empty() || first + static_cast<int>(ids.size()) > self.dims()) return op.corrupt("its indices do not fit");
  return add_pick(op, self, std::move(ids), first, FromEnd::kYes);
}

Status prepare_index_select(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor index, op.tensor("index"));
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims()));
  if (index.dims() != 1 || self.dims() == 0) return op.corrupt("its index is not a list of ids");
  return add_pick(op, self, {index}, dim, FromEnd::kNo);
}

constexpr OpEntry kIndexOps[] = {
    {"aten.embedding.default", prepare_embedding}, {"accord.embedding", prepare_embedding},
    {"aten.gather.default", prepare_gather},       {"aten.cat.default", prepare_concatenate},
    {"aten.index.Tensor", prepare_index},          {"aten.index_select.default", prepare_index_select},
};

}  // namespace

std::span<const OpEntry> index_ops() { return kIndexOps; }

}  // namespace accord::engine
