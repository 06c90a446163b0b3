// Bad ids are found alike on all ranks, since they get equal inputs.
#include "engine/ops/index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/graph/node_access.hpp"
#include "engine/host/run.hpp"
#include "engine/host/steps.hpp"
#include "kernels/index.hpp"
#include "kernels/linear/gather.hpp"

namespace accord::engine::host {
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

// Adds a step that divides the ids among threads and calls gather(execution, ids, count, output, thread), which
// returns a bad id if there is one.
template <typename Gather>
void add_lookup(Preparation& op, const RowLookup& lookup, const Gather& gather) {
  op.step([=, node = &op.node()](const Execution& execution) {
    const std::int64_t count = lookup.ids.count();
    const int parts = count < 64 ? 1 : pool_of(execution).threads();
    const std::int64_t row_bytes = static_cast<std::int64_t>(lookup.y.bytes()) / std::max<std::int64_t>(count, 1);
    return pool_of(execution).run(parts, [&](int part, int thread) {
      const PartRange range = part_range(count, 1, part, parts);
      const std::byte* ids =
          execution.address(lookup.ids) + range.first * static_cast<std::int64_t>(size_of(lookup.ids.dtype));
      std::byte* output = execution.address(lookup.y) + range.first * row_bytes;
      const auto bad = gather(execution, ids, range.last - range.first, output, thread);
      return bad ? bad_index(*node, bad->id, range.first + bad->position, {0, lookup.total_rows}) : Status();
    });
  });
}

// The table is also the weight of a linear layer, so there is only the packed copy of it.
Status add_packed_embedding(Preparation& op, const RowLookup& lookup, const kernels::PackedMatrix& table) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor rows, op.scratch(DType::kFloat32, {op.threads(), table.in()}));
  add_lookup(op, lookup,
             [=](const Execution& execution, const void* ids, std::int64_t count, void* output, int thread) {
               kernels::GatherOutputsCall call;
               call.ids = ids;
               call.id_dtype = lookup.ids.dtype;
               call.count = count;
               call.table = &table;
               call.first_row = lookup.first_row;
               call.total_rows = lookup.total_rows;
               call.output = output;
               call.output_dtype = lookup.y.dtype;
               call.row = execution.data<float>(rows) + thread * table.in();
               return kernels::gather_outputs(call);
             });
  return Status();
}

Status add_embedding(Preparation& op, const EmbeddingCall& embedding) {
  const RowLookup& lookup = embedding.lookup;
  if (embedding.packed != nullptr) return add_packed_embedding(op, lookup, *embedding.packed);
  ACCORD_RETURN_IF_ERROR(op.require(lookup.y, {lookup.table.dtype}));
  add_lookup(op, lookup, [lookup](const Execution& execution, const void* ids, std::int64_t count, void* output, int) {
    const Tensor& table = lookup.table;
    const auto element = static_cast<std::int64_t>(size_of(table.dtype));
    kernels::GatherCall call;
    call.ids = ids;
    call.id_dtype = lookup.ids.dtype;
    call.count = count;
    call.table = execution.address(table);
    call.table_rows = table.size(0);
    call.first_row = lookup.first_row;
    call.total_rows = lookup.total_rows;
    call.row_bytes = table.size(1) * element;
    call.table_row_stride = lookup.table_row_stride * element;
    call.output = output;
    call.output_row_stride = call.row_bytes;
    return kernels::gather_rows(call);
  });
  return Status();
}

Status add_gather_elements(Preparation& op, const GatherElementsCall& call) {
  op.step([call, node = &op.node()](const Execution& execution) {
    const Status status =
        kernels::gather_elements(execution.read(call.x), call.dim, execution.read(call.index), execution.write(call.y));
    return status.ok() ? status : status.with_context(node_text(*node));
  });
  return Status();
}

// For each block before the indexed dimensions and each picked place, the offset is the sum of id * stride. The
// elements after the indexed dimensions are copied as one block.
Status pick(const PickCall& call, const Node& node, const Execution& execution) {
  const Tensor& x = call.x;
  const auto indexed = static_cast<int>(call.ids.size());
  std::int64_t before = 1;
  for (int dim = 0; dim < call.first; ++dim) before *= x.size(dim);
  std::int64_t after = static_cast<std::int64_t>(size_of(x.dtype));
  for (int dim = call.first + indexed; dim < x.dims(); ++dim) after *= x.size(dim);
  std::int64_t block = after;
  for (int i = 0; i < indexed; ++i) block *= x.size(call.first + i);
  std::int64_t places = 1;
  for (const std::int64_t size : call.picked) places *= size;

  std::byte* output = execution.address(call.y);
  for (std::int64_t place = 0; place < places; ++place) {
    std::int64_t offset = 0;
    for (int i = 0; i < indexed; ++i) {
      const Tensor& ids = call.ids[static_cast<std::size_t>(i)];
      std::int64_t rest = place;
      std::int64_t element = 0;
      for (int dim = static_cast<int>(call.picked.size()) - 1; dim >= 0; --dim) {
        const std::int64_t size = call.picked[static_cast<std::size_t>(dim)];
        element += rest % size * ids.stride(dim);
        rest /= size;
      }
      const std::int64_t size = x.size(call.first + i);
      const std::int64_t id = ids.dtype == DType::kInt64 ? execution.data<const std::int64_t>(ids)[element]
                                                         : execution.data<const std::int32_t>(ids)[element];
      const IdRange range{call.from_end == FromEnd::kYes ? -size : 0, size};
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

Status add_pick(Preparation& op, const PickCall& call) {
  op.step([call, node = &op.node()](const Execution& execution) { return pick(call, *node, execution); });
  return Status();
}

}  // namespace

void set_index_steps(StepTable& table) {
  table.set<EmbeddingCall>(add_embedding);
  table.set<GatherElementsCall>(add_gather_elements);
  table.set<PickCall>(add_pick);
}

}  // namespace accord::engine::host
