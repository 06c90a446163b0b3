// Attention to parts of the tokens, merged.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "every_instruction_set.hpp"
#include "kernels/attention/merge_parts.hpp"
#include "paged_sequence.hpp"

namespace accord::kernels {
namespace {

class PagedParts : public EveryInstructionSet {};
ACCORD_ON_EVERY_INSTRUCTION_SET(PagedParts);

// Attends to each part of the tokens by itself, from caches that hold `parts / caches` parts each, and merges them.
// Blocks of `shape` are divided into `parts`.
std::vector<float> attend_in_parts(const Shape& shape, std::int64_t parts, std::int64_t caches) {
  Sequence whole(shape);
  const std::int64_t run = shape.block_tokens / parts, kept_parts = parts / caches;
  const std::int64_t record = shape.value_dim + 2, row = shape.heads * record;
  std::vector<float> outputs(static_cast<std::size_t>(parts * shape.tokens * row));
  for (std::int64_t cache = 0; cache < caches; ++cache) {
    Shape of_cache = shape;
    of_cache.block_tokens = kept_parts * run;
    Sequence kept(of_cache);
    kept.table.resize(whole.table.size());
    std::iota(kept.table.rbegin(), kept.table.rend(), 0);
    for (std::int64_t token = 0; token < shape.tokens; ++token) {
      const std::int64_t place = token % shape.block_tokens - cache * kept_parts * run;
      if (place < 0 || place >= kept_parts * run) continue;
      const SequenceRows one = {1, token / shape.block_tokens * kept_parts * run + place, kept.table};
      const std::int64_t key_row = shape.kv_heads * shape.head_dim, value_row = shape.kv_heads * shape.value_dim;
      append_to_cache(kept.call.cache, one, {kept.k.data() + token * key_row, key_row, shape.head_dim},
                      {kept.v.data() + token * value_row, value_row, shape.value_dim}, 0, shape.kv_heads);
    }
    PagedAttentionCall call = kept.call;
    call.sinks = nullptr;
    call.is_partial = true;
    call.q = {kept.q.data(), shape.heads * shape.head_dim, shape.head_dim};
    std::vector<float> scratch(paged_attention_scratch(call));
    for (std::int64_t part = cache * kept_parts; part < (cache + 1) * kept_parts; ++part) {
      call.part = {.parts = parts, .part = part, .first = cache * kept_parts, .tokens = run};
      call.output = {outputs.data() + part * shape.tokens * row, row, record};
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        for (std::int64_t set = 0; set < head_sets(call); ++set)
          paged_attention(call, {shape.tokens, 0, kept.table}, {head, set, 0, shape.tokens}, scratch);
      }
    }
  }
  MergePartsCall merge{.outputs = {outputs.data(), row, record},
                       .part_stride = shape.tokens * row,
                       .parts = parts,
                       .heads = shape.heads,
                       .value_dim = shape.value_dim,
                       .sinks = whole.call.sinks,
                       .output = {whole.output.data(), shape.heads * shape.value_dim, shape.value_dim}};
  merge_parts(merge, 0, shape.tokens);
  whole.check();
  return whole.output;
}

TEST_P(PagedParts, merge_to_the_whole_with_the_same_bits_from_any_number_of_caches) {
  for (const Shape& shape :
       {Shape{.tokens = 300, .heads = 6, .kv_heads = 2, .head_dim = 24, .value_dim = 20, .block_tokens = 64},
        Shape{.tokens = 3, .block_tokens = 128}, Shape{.tokens = 600, .heads = 2, .block_tokens = 64, .window = 70},
        Shape{.tokens = 300, .heads = 2, .block_tokens = 64, .chunk = 90},
        Shape{.tokens = 390, .heads = 4, .block_tokens = 128, .softcap = 2.5F, .has_sinks = true, .has_slopes = true},
        Shape{.tokens = 280, .heads = 2, .head_dim = 7, .value_dim = 5, .block_tokens = 64, .dtype = DType::kInt8},
        Shape{.tokens = 90, .block_tokens = 192, .dtype = DType::kBFloat16, .window = 20, .has_sinks = true},
        Shape{.tokens = 210,
        .heads = 11,
        .head_dim = 40,
        .value_dim = 33,
        .block_tokens = 64,
        .dtype = DType::kInt8,
        .value_place = ValuePlace::kInKeys}}) {
    const std::vector<float> of_one = attend_in_parts(shape, 4, 1);
    EXPECT_EQ(of_one, attend_in_parts(shape, 4, 2));
    EXPECT_EQ(of_one, attend_in_parts(shape, 4, 4));
    attend_in_parts(shape, 2, 2);
  }
}

}  // namespace
}  // namespace accord::kernels
