// Each rank has the keys and values of its parts of the tokens. It attends to them with the queries of all ranks, and
// each query's rank merges what it gets from the others: the queries travel and not the keys, so the bytes do not grow
// with the context. A decode step has only rows that every rank computes, and one exchange.
#include "engine/host/divided_attention.hpp"

#include <algorithm>

#include "base/rounding.hpp"
#include "engine/host/attention_rows.hpp"
#include "engine/host/run.hpp"
#include "kernels/attention/merge_parts.hpp"

namespace accord::engine::host {
namespace {

constexpr std::int64_t kRowsOfMerge = 8;

/// Where the outputs of a rank's own parts are: for each destination [parts of the rank][rows][heads], rows that only
/// the destination computes first.
struct PartialRows {
  std::int64_t row_floats = 0;
  std::int64_t rows = 0;  ///< of each part
  int parts = 1;          ///< of the rank
  int destinations = 1;

  std::int64_t segment() const { return parts * rows * row_floats; }
  std::int64_t offset(std::int64_t destination, std::int64_t part, std::int64_t row) const {
    return destination * segment() + (part * rows + row) * row_floats;
  }
};

struct DividedCall {
  const CachedAttentionCall& call;
  const ContextRows& rows;
  const Execution& execution;
  AttentionExchange& exchange;

  const kernels::PagedCache& cache() const { return run_of(execution).cache->layer(call.layer); }
  bool is_alone() const { return rows.share().ranks == 1; }
  std::int64_t heads() const { return call.q.size(1); }
  std::int64_t query_floats() const { return heads() * call.q.size(3); }
  std::int64_t record() const { return call.output.size(3) + 2; }
  std::span<const std::int32_t> blocks(const ContextRun& run) const {
    return execution.batch[run.sequence].rows.blocks;
  }
  // Returns the run's first row in this rank's tensors. REQUIRES: this rank computes it.
  std::int64_t row_of(const ContextRun& run) const { return run.is_everywhere ? rows.own() + run.at : run.at; }
  Communicator communicator() const { return *execution.communicators[static_cast<std::size_t>(rows.share().group)]; }
  // One copy for all destinations if every rank computes all rows.
  PartialRows partials() const {
    const ContextShare& share = rows.share();
    return {.row_floats = heads() * record(),
            .rows = rows.most_own() + rows.everywhere(),
            .parts = share.parts_of_rank(),
            .destinations = rows.most_own() > 0 ? share.ranks : 1};
  }
};

Status append(const DividedCall& work) {
  const CachedAttentionCall& call = work.call;
  return pool_of(work.execution).run(static_cast<int>(call.k.size(1)), [&](int head) {
    for (const ContextRun& run : work.rows.runs()) {
      if (run.keeper != work.rows.share().rank) continue;
      const std::int64_t row = work.row_of(run);
      kernels::ConstTokenRows values;
      if (call.v) values = token_rows(work.execution, *call.v, row);
      kernels::append_to_cache(work.cache(), {run.rows, run.cached, work.blocks(run)},
                               token_rows(work.execution, call.k, row), values, head, 1);
    }
    return Status();
  });
}

// Gets the queries that the other ranks compute.
Status gather_queries(const DividedCall& work) {
  const std::int64_t most = work.rows.most_own(), floats = work.query_floats();
  if (work.is_alone() || most == 0) return Status();
  const ContextShare& share = work.rows.share();
  std::vector<float>& queries = work.exchange.queries;
  const auto count = static_cast<std::size_t>(most * floats);
  queries.resize(count * static_cast<std::size_t>(share.ranks));
  float* const own = queries.data() + count * static_cast<std::size_t>(share.rank);
  const kernels::ConstTokenRows from = token_rows(work.execution, work.call.q, 0);
  const std::int64_t dim = work.call.q.size(3);
  for (std::int64_t row = 0; row < work.rows.own(); ++row) {
    for (std::int64_t head = 0; head < work.heads(); ++head) {
      std::copy_n(from.data + row * from.row_stride + head * from.head_stride, dim, own + row * floats + head * dim);
    }
  }
  return work.communicator().all_gather(ConstBuffer(own, count, DType::kFloat32),
                                        Buffer{queries.data(), queries.size(), DType::kFloat32});
}

kernels::ConstTokenRows queries_of(const DividedCall& work, const ContextRun& run) {
  const bool is_here = run.is_everywhere || run.keeper == work.rows.share().rank;
  if (is_here) return token_rows(work.execution, work.call.q, work.row_of(run));
  const std::int64_t first = run.keeper * work.rows.most_own() + run.at;
  return {work.exchange.queries.data() + first * work.query_floats(), work.query_floats(), work.call.q.size(3)};
}

// Attends to this rank's parts with the queries of all ranks.
Status attend(const DividedCall& work, const Tensor& scratch) {
  const CachedAttentionCall& call = work.call;
  const PartialRows to = work.partials();
  std::vector<float>& partials = work.exchange.partials;
  partials.resize(static_cast<std::size_t>(to.segment() * to.destinations));
  const auto kv_heads = static_cast<int>(call.k.size(1));
  const auto runs = static_cast<int>(work.rows.runs().size());
  const kernels::PagedAttentionCall all{work.cache(), work.heads(), call.scale, call.softcap, call.window, call.chunk};
  const auto sets = static_cast<int>(kernels::head_sets(all)) * kv_heads;
  return pool_of(work.execution).run(runs * to.parts * sets, [&](int piece, int thread) {
    const ContextRun& run = work.rows.runs()[static_cast<std::size_t>(piece / (to.parts * sets))];
    const int part = piece / sets % to.parts;
    kernels::PagedAttentionCall kernel = all;
    if (call.slopes) kernel.slopes = work.execution.data<const float>(*call.slopes);
    set_biases(work.execution, call, kernel);
    kernel.q = queries_of(work, run);
    const std::int64_t row = run.is_everywhere ? work.rows.most_own() + run.at : run.at;
    const std::int64_t destination = run.is_everywhere || to.destinations == 1 ? 0 : run.keeper;
    kernel.output = {partials.data() + to.offset(destination, part, row), to.row_floats, work.record()};
    kernel.part = work.rows.token_part(part);
    kernel.is_partial = true;
    const kernels::PagedAttentionPart share{piece % kv_heads, piece % sets / kv_heads, 0, run.rows};
    kernels::paged_attention(kernel, {run.rows, run.position, work.blocks(run)}, share,
                             scratch_of(scratch, work.execution, thread));
    return Status();
  });
}

// Returns the outputs of all parts for this rank's rows.
Result<const float*> exchange_partials(const DividedCall& work) {
  std::vector<float>& partials = work.exchange.partials;
  if (work.is_alone()) return partials.data();
  const PartialRows from = work.partials();
  const auto everywhere = static_cast<std::size_t>(work.rows.everywhere() * from.row_floats);
  for (int destination = 1; destination < from.destinations; ++destination) {
    for (int part = 0; part < from.parts; ++part) {
      std::copy_n(partials.data() + from.offset(0, part, work.rows.most_own()), everywhere,
                  partials.data() + from.offset(destination, part, work.rows.most_own()));
    }
  }
  std::vector<float>& gathered = work.exchange.gathered;
  gathered.resize(static_cast<std::size_t>(from.segment() * work.rows.share().ranks));
  const ConstBuffer input(partials.data(), partials.size(), DType::kFloat32);
  const Buffer output{gathered.data(), gathered.size(), DType::kFloat32};
  Communicator communicator = work.communicator();
  ACCORD_RETURN_IF_ERROR(from.destinations == 1 ? communicator.all_gather(input, output)
                                                : communicator.all_to_all(input, output));
  return gathered.data();
}

Status merge(const DividedCall& work, const float* parts) {
  const CachedAttentionCall& call = work.call;
  const PartialRows from = work.partials();
  kernels::MergePartsCall kernel{.outputs = {parts, from.row_floats, work.record()},
                                 .part_stride = from.rows * from.row_floats,
                                 .parts = work.rows.share().parts,
                                 .heads = work.heads(),
                                 .value_dim = call.output.size(3)};
  if (call.sinks) kernel.sinks = work.execution.data<const float>(*call.sinks);
  const kernels::TokenRows output = {work.execution.data<float>(call.output), call.output.stride(1),
                                     call.output.stride(2)};
  const auto merge_rows = [&](std::int64_t first, std::int64_t count, std::int64_t row) {
    return pool_of(work.execution).run(static_cast<int>(quotient_up(count, kRowsOfMerge)), [&](int piece) {
      kernels::MergePartsCall some = kernel;
      some.outputs.data += first * from.row_floats;
      some.output = output;
      some.output.data += row * output.row_stride;
      const std::int64_t begin = piece * kRowsOfMerge;
      kernels::merge_parts(some, begin, std::min(kRowsOfMerge, count - begin));
      return Status();
    });
  };
  ACCORD_RETURN_IF_ERROR(merge_rows(0, work.rows.own(), 0));
  return merge_rows(work.rows.most_own(), work.rows.everywhere(), work.rows.own());
}

}  // namespace

Status run_divided_attention(const CachedAttentionCall& call, const Tensor& scratch, const ContextRows& rows,
                             const Execution& execution) {
  const DividedCall work{call, rows, execution, *run_of(execution).attention_exchange};
  ACCORD_RETURN_IF_ERROR(append(work));
  ACCORD_RETURN_IF_ERROR(gather_queries(work));
  ACCORD_RETURN_IF_ERROR(attend(work, scratch));
  ACCORD_ASSIGN_OR_RETURN(const float* const parts, exchange_partials(work));
  return merge(work, parts);
}

}  // namespace accord::engine::host
