#pragma once
// Scaled dot-product attention in fp32.

#include <cstddef>
#include <cstdint>
#include <span>

#include "accord/status.hpp"

namespace accord::kernels {

/// [batch, heads, length, dim] with the last dimension contiguous. Strides are in floats.
struct ConstHeads {
  const float* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};
struct Heads {
  float* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

enum class MaskKind : std::uint8_t {
  kNone,
  kAdditive,  ///< float, added to the scaled scores
  kBool,      ///< one byte each, 0 = do not attend
};

/// Viewed as [batch, heads, q_len, k_len]. Strides are in elements; a stride of 0 repeats an element.
struct AttentionMask {
  MaskKind kind = MaskKind::kNone;
  const void* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, row_stride = 0, column_stride = 0;
};

enum class Causality : std::uint8_t {
  kFull,
  kCausal,  ///< query i attends to keys 0..i, like PyTorch's is_causal (aligned at the first key)
};

/// output = softmax(scale * q * k^T + mask) * v, head by head.
struct AttentionCall {
  std::int64_t batch = 0;
  std::int64_t heads = 0;     ///< of q and output
  std::int64_t kv_heads = 0;  ///< of k and v; divides heads: query head h uses kv head h / (heads / kv_heads)
  std::int64_t q_len = 0;
  std::int64_t k_len = 0;
  std::int64_t head_dim = 0;   ///< of q and k
  std::int64_t value_dim = 0;  ///< of v and output
  ConstHeads q = {}, k = {}, v = {};
  AttentionMask mask = {};
  Causality causality = Causality::kFull;
  float scale = 1.0F;  ///< usually 1 / sqrt(head_dim)
  Heads output = {};   ///< must not overlap any input
};

/// Floats of scratch with which `attention` runs at full speed: enough for at most 128 query rows of k_len scores.
std::size_t attention_scratch(const AttentionCall& call);
/// The smallest scratch that `attention` accepts: one row.
std::size_t attention_scratch_min(const AttentionCall& call);

/// Runs on the calling thread, one block of query rows at a time. More scratch (up to attention_scratch) means larger
/// blocks. A row that may not attend to any key (all masked by false or -infinity) becomes zeros, as in PyTorch's
/// scaled_dot_product_attention. NaN propagates. Fails with kInvalidArgument for wrong sizes or too little scratch.
/// Cost: 2 * batch * heads * q_len * k_len * (head_dim + value_dim) operations and one exp per score.
Status attention(const AttentionCall& call, std::span<float> scratch);

}  // namespace accord::kernels
