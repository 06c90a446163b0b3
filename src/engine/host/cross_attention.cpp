// Attention to the source of each sequence. The encoder's program stores keys and values of a source in blocks of the
// cache, as attention stores those of a sequence; all rows of the decoder then attend to all of them.
#include <fmt/format.h>

#include "engine/graph/node_access.hpp"
#include "engine/host/attention_rows.hpp"
#include "engine/host/steps.hpp"
#include "engine/ops/attention.hpp"

namespace accord::engine::host {
namespace {

Status add_cache_source(Preparation& op, const CacheSourceCall& call) {
  ACCORD_RETURN_IF_ERROR(op.require(call.k, {DType::kFloat32}));
  ACCORD_RETURN_IF_ERROR(op.require(call.v, {DType::kFloat32}));
  ACCORD_RETURN_IF_ERROR(op.require(call.output, {DType::kInt64}));
  op.step([call](const Execution& execution) {
    const kernels::PagedCache& cache = run_of(execution).cache->layer(call.layer);
    *execution.data<std::int64_t>(call.output) = call.k.size(2);
    return pool_of(execution).run(static_cast<int>(call.k.size(1)), [&](int head) {
      for (const BatchRows& source : execution.batch) {
        kernels::append_to_cache(cache, source.rows, token_rows(execution, call.k, source.first_row),
                                 token_rows(execution, call.v, source.first_row), head, 1);
      }
      return Status();
    });
  });
  return Status();
}

// The encoder decides what the cache holds, and another program computes the queries.
Status check_fits(const CrossAttentionCall& call, const kernels::PagedCache& cache) {
  const std::int64_t heads = call.q.size(1);
  const bool fits = heads % cache.kv_heads == 0 && call.q.size(3) == cache.head_dim &&
                    call.value_dim == cache.value_dim && cache.value_place == kernels::ValuePlace::kOwn;
  if (fits) return Status();
  return Status(
      StatusCode::kCorrupt,
      fmt::format("{} heads of {} elements attend to {} key heads of {} in the cache, with values of {} and {}", heads,
                  call.q.size(3), cache.kv_heads, cache.head_dim, call.value_dim, cache.value_dim));
}

Status run_cross_attention(const CrossAttentionCall& call, const Tensor& scratch, const Execution& execution) {
  const kernels::PagedCache& cache = run_of(execution).cache->layer(call.layer);
  ACCORD_RETURN_IF_ERROR(check_fits(call, cache));
  for (const BatchRows& sequence : execution.batch) {
    if (sequence.source_rows < 1)
      return Status(StatusCode::kInvalidArgument, "a sequence has no source, to which its cross attention attends");
  }
  kernels::PagedAttentionCall all{.cache = cache, .heads = call.q.size(1), .scale = call.scale};
  return for_pieces(execution, all,
                    [&](const BatchRows& sequence, const kernels::PagedAttentionPart& part, int thread) {
                      kernels::PagedAttentionCall kernel = all;
                      kernel.tokens_of_all = sequence.source_rows;
                      kernel.q = token_rows(execution, call.q, sequence.first_row);
                      kernel.output = output_rows(execution, call.output, sequence.first_row);
                      const kernels::SequenceRows rows{sequence.rows.rows, 0, sequence.source_blocks};
                      kernels::paged_attention(kernel, rows, part, scratch_of(scratch, execution, thread));
                      return Status();
                    });
}

Status add_cross_attention(Preparation& op, const CrossAttentionCall& call) {
  ACCORD_RETURN_IF_ERROR(op.require(call.q, {DType::kFloat32}));
  ACCORD_RETURN_IF_ERROR(op.require(call.output, {DType::kFloat32}));
  kernels::PagedAttentionCall sizes{.heads = call.q.size(1)};
  sizes.cache = {.kv_heads = 1, .head_dim = call.q.size(3), .value_dim = call.value_dim};
  ACCORD_ASSIGN_OR_RETURN(const Tensor scratch,
                          scratch_pieces(op, op.threads(), kernels::paged_attention_scratch(sizes)));
  op.step([call, scratch, node = &op.node()](const Execution& execution) {
    const Status status = run_cross_attention(call, scratch, execution);
    return status.ok() ? status : status.with_context(node_text(*node));
  });
  return Status();
}

}  // namespace

void set_cross_attention_steps(StepTable& table) {
  table.set<CacheSourceCall>(add_cache_source);
  table.set<CrossAttentionCall>(add_cross_attention);
}

}  // namespace accord::engine::host
