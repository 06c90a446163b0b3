// Ops that pick elements by index. Ids are checked on each run. An id outside its table is an error that names it; it
// is found before anything is written, and alike on all ranks, since they get equal inputs.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/gpu/index_steps.hpp"
#include "engine/graph/node_access.hpp"
#include "engine/ops/op_registry.hpp"
#include "kernels/index.hpp"
#include "kernels/linear/gather.hpp"

namespace accord::engine {
namespace {

/// The valid ids of a dimension: from `lowest` to below `size`.
struct IdRange {
  std::int64_t lowest = 0;
  std::int64_t size = 0;
};

Status bad_index(const Node& node, std::int64_t index, std::int64_t position, const IdRange& range) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: id {} at position {} is outside [{}, {})",
                                                          node_text(node), index, position, range.lowest, range.size));
}

/// Rows of a table, looked up by id.
struct Lookup {
  Tensor ids;  // contiguous
  Tensor y;    // [ids.., width]
  // If the ranks share a table by rows: this rank's rows. Ids in other ranks' rows give zeros, and an all_reduce
  // follows.
  std::int64_t first_row = 0;
  std::int64_t rows_in_all = 0;
};

Result<Lookup> lookup_of(Preparation& op, std::int64_t table_rows, std::int64_t width) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("indices"));
  ACCORD_RETURN_IF_ERROR(op.require(given, {DType::kInt32, DType::kInt64}));
  Lookup lookup;
  ACCORD_ASSIGN_OR_RETURN(lookup.ids, op.contiguous(given));
  Sizes sizes = lookup.ids.sizes();
  sizes.push_back(width);
  ACCORD_ASSIGN_OR_RETURN(lookup.y, op.make(0, sizes));
  ACCORD_ASSIGN_OR_RETURN(lookup.first_row, op.integer("first_row", 0));
  ACCORD_ASSIGN_OR_RETURN(lookup.rows_in_all, op.integer("rows_in_all", table_rows));
  return lookup;
}

// Adds a step that divides the ids among threads and calls gather(execution, ids, count, output, thread), which
// returns a bad id if there is one.
template <typename Gather>
void add_lookup(Preparation& op, const Lookup& lookup, const Gather& gather, const MakeStep& on_device = {}) {
  const Step step = [=, node = &op.node()](const Execution& execution) {
    const std::int64_t count = lookup.ids.count();
    const int parts = count < 64 ? 1 : execution.pool.threads();
    const std::int64_t row_bytes = static_cast<std::int64_t>(lookup.y.bytes()) / std::max<std::int64_t>(count, 1);
    return execution.pool.run(parts, [&](int part, int thread) {
      const PartRange range = part_range(count, 1, part, parts);
      const std::byte* ids =
          execution.address(lookup.ids) + range.first * static_cast<std::int64_t>(size_of(lookup.ids.dtype));
      std::byte* output = execution.address(lookup.y) + range.first * row_bytes;
      const auto bad = gather(execution, ids, range.last - range.first, output, thread);
      return bad ? bad_index(*node, bad->id, range.first + bad->position, {0, lookup.rows_in_all}) : Status();
    });
  };
  op.step(step, on_device);
}

// The table is also the weight of a linear layer, so there is only the packed copy of it.
Status prepare_packed_embedding(Preparation& op, const kernels::PackedMatrix& table) {
  ACCORD_ASSIGN_OR_RETURN(const Lookup lookup, lookup_of(op, table.out(), table.in()));
  ACCORD_ASSIGN_OR_RETURN(const Tensor rows, op.scratch(DType::kFloat32, {op.threads(), table.in()}));
  add_lookup(op, lookup,
             [=](const Execution& execution, const void* ids, std::int64_t count, void* output, int thread) {
               kernels::GatherOutputsCall call;
               call.ids = ids;
               call.id_dtype = lookup.ids.dtype;
               call.count = count;
               call.table = &table;
               call.first_row = lookup.first_row;
               call.rows_in_all = lookup.rows_in_all;
               call.output = output;
               call.output_dtype = lookup.y.dtype;
               call.row = execution.data<float>(rows) + thread * table.in();
               return kernels::gather_outputs(call);
             });
  return Status();
}

Status prepare_embedding(Preparation& op) {
  if (const auto* packed = op.packed_linear("weight")) return prepare_packed_embedding(op, *packed);
  ACCORD_ASSIGN_OR_RETURN(const Tensor table, op.tensor("weight"));
  if (table.dims() != 2) return op.corrupt("its table does not have two dimensions");
  const auto rows = as_rows(table.layout);
  if (!rows) return op.unsupported("its table is not made of rows");
  ACCORD_ASSIGN_OR_RETURN(const Lookup lookup, lookup_of(op, table.size(0), table.size(1)));
  const auto gather = [=](const Execution& execution, const void* ids, std::int64_t count, void* output, int) {
    const auto element = static_cast<std::int64_t>(size_of(table.dtype));
    kernels::GatherCall call;
    call.ids = ids;
    call.id_dtype = lookup.ids.dtype;
    call.count = count;
    call.table = execution.address(table);
    call.table_rows = table.size(0);
    call.first_row = lookup.first_row;
    call.rows_in_all = lookup.rows_in_all;
    call.row_bytes = table.size(1) * element;
    call.table_row_stride = rows->stride * element;
    call.output = output;
    call.output_row_stride = call.row_bytes;
    return kernels::gather_rows(call);
  };
  add_lookup(op, lookup, gather, [&] {
    return gather_rows_on_device(&op.node(),
                                 {lookup.ids, table, lookup.y, rows->stride, lookup.first_row, lookup.rows_in_all});
  });
  return Status();
}

Status prepare_gather(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor index, op.tensor("index"));
  ACCORD_RETURN_IF_ERROR(op.require(index, {DType::kInt32, DType::kInt64}));
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims()));
  if (self.dims() == 0) return op.unsupported("elements of a scalar");
  if (self.dims() != index.dims()) return op.corrupt("its index does not have as many dimensions as its input");
  for (int i = 0; i < self.dims(); ++i) {
    if (i != dim && index.size(i) > self.size(i)) return op.corrupt("its index is larger than its input");
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, index.sizes()));
  op.step(
      [=, node = &op.node()](const Execution& execution) {
        const Status status =
            kernels::gather_elements(execution.read(self), dim, execution.read(index), execution.write(y));
        return status.ok() ? status : status.with_context(node_text(*node));
      },
      [&] { return gather_elements_on_device(&op.node(), self, dim, index, y); });
  return Status();
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
    if (inputs[i].dims() != inputs[0].dims()) return op.corrupt("its inputs differ in dimensions");
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
    op.step(
        [=](const Execution& execution) {
          return kernels::copy_strided(execution.read(input), execution.write(slice));
        },
        [&] { return convert_on_device(input, slice); });
  }
  return Status();
}

// For each block before the indexed dimensions and each picked place, the offset is the sum of id * stride. The
// elements after the indexed dimensions are copied as one block.
Status pick(const Picking& picking, const Node& node, const Execution& execution) {
  const Tensor& x = picking.x;
  const auto indexed = static_cast<int>(picking.ids.size());
  std::int64_t before = 1;
  for (int dim = 0; dim < picking.first; ++dim) before *= x.size(dim);
  std::int64_t after = static_cast<std::int64_t>(size_of(x.dtype));
  for (int dim = picking.first + indexed; dim < x.dims(); ++dim) after *= x.size(dim);
  std::int64_t block = after;
  for (int i = 0; i < indexed; ++i) block *= x.size(picking.first + i);
  std::int64_t places = 1;
  for (const std::int64_t size : picking.picked) places *= size;

  std::byte* output = execution.address(picking.y);
  for (std::int64_t place = 0; place < places; ++place) {
    std::int64_t offset = 0;
    for (int i = 0; i < indexed; ++i) {
      const Tensor& ids = picking.ids[static_cast<std::size_t>(i)];
      std::int64_t rest = place;
      std::int64_t element = 0;
      for (int dim = static_cast<int>(picking.picked.size()) - 1; dim >= 0; --dim) {
        const std::int64_t size = picking.picked[static_cast<std::size_t>(dim)];
        element += rest % size * ids.stride(dim);
        rest /= size;
      }
      const std::int64_t size = x.size(picking.first + i);
      const std::int64_t id = ids.dtype == DType::kInt64 ? execution.data<const std::int64_t>(ids)[element]
                                                         : execution.data<const std::int32_t>(ids)[element];
      const IdRange range{picking.from_end == FromEnd::kYes ? -size : 0, size};
      if (id < range.lowest || id >= size) return bad_index(node, id, place, range);
      offset = offset * size + (id < 0 ? id + size : id);
    }
    for (std::int64_t i = 0; i < before; ++i) {
      std::memcpy(output + (i * places + place) * after, execution.address(x) + i * block + offset * after,
                  static_cast<std::size_t>(after));
    }
  }
  return Status();
}

Status add_pick(Preparation& op, const Tensor& self, std::vector<Tensor> ids, int first, FromEnd from_end) {
  Picking picking;
  picking.first = first;
  picking.from_end = from_end;
  for (const Tensor& one : ids) {
    ACCORD_RETURN_IF_ERROR(op.require(one, {DType::kInt32, DType::kInt64}));
    const auto dims = static_cast<std::size_t>(one.dims());
    Sizes& picked = picking.picked;
    if (dims > picked.size()) picked.insert(picked.begin(), dims - picked.size(), 1);
    for (std::size_t i = 0; i < dims; ++i) {
      std::int64_t& size = picked[picked.size() - dims + i];
      if (size == 1) size = one.layout.sizes[i];
      if (one.layout.sizes[i] != 1 && one.layout.sizes[i] != size) return op.corrupt("its indices do not broadcast");
    }
  }
  for (Tensor& one : ids) {
    ACCORD_ASSIGN_OR_RETURN(one.layout, kernels::broadcast_layout(one.layout, picking.picked));
  }
  ACCORD_ASSIGN_OR_RETURN(picking.x, op.contiguous(self));
  Sizes sizes = self.sizes();
  const auto begin = sizes.begin() + first;
  const auto rest = sizes.erase(begin, begin + static_cast<std::ptrdiff_t>(ids.size()));
  sizes.insert(rest, picking.picked.begin(), picking.picked.end());
  picking.ids = std::move(ids);
  ACCORD_ASSIGN_OR_RETURN(picking.y, op.make(0, sizes));
  if (op.is_on_device() && picking.ids.size() > kMostPickedIds)
    return op.unsupported("so many indices have no kernel for GPUs");
  op.step([picking, node = &op.node()](const Execution& execution) { return pick(picking, *node, execution); },
          [&] { return pick_on_device(&op.node(), picking); });
  return Status();
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
      return op.unsupported("indices with gaps between them have no kernel");
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
  if (index.dims() != 1 || self.dims() == 0) return op.corrupt("it takes a list of ids");
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
