// Attention runs head by head, in blocks of query rows whose scores fit the caller's scratch:
//   scores = scale * q * k^T (sgemm). A causal block stops at the last key that its last row may attend.
//   Per row: add the mask, find the maximum, then compute scores = exp(scores - maximum) and their sum.
//   output = scores * v (sgemm). Each row is divided by its sum here, which is cheaper than dividing the scores.
// A row whose maximum is -infinity attends to nothing and becomes zeros.

#include "kernels/attention/attention.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/gemm.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/math_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void AddMask(float* scores, const float* mask, std::int64_t stride, std::size_t count) {
  if (stride != 1) {
    for (std::size_t i = 0; i < count; ++i) scores[i] += mask[static_cast<std::int64_t>(i) * stride];
    return;
  }
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, scores + i), hn::LoadU(d, mask + i)), d, scores + i);
  }
  for (; i < count; ++i) scores[i] += mask[i];
}

void ApplyBoolMask(float* scores, const std::uint8_t* mask, std::int64_t stride, std::size_t count) {
  const float never = -__builtin_inff();
  if (stride == 1) {
    for (std::size_t i = 0; i < count; ++i) scores[i] = mask[i] != 0 ? scores[i] : never;
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      if (mask[static_cast<std::int64_t>(i) * stride] == 0) scores[i] = never;
    }
  }
}

// Computes scores[i] = exp(scores[i] - max), or zeros if the row attends to nothing. Returns 1 / sum.
float Exponentiate(float* scores, std::size_t count) {
  const hn::ScalableTag<float> d;
  const float max = MaxOfRow(d, scores, count);
  if (max == -__builtin_inff() && std::none_of(scores, scores + count, [](float s) { return s != s; })) {
    std::fill(scores, scores + count, 0.0F);
    return 0.0F;
  }
  return 1.0F / ExpOfRow(d, scores, scores, count, max);
}

void ScaleRow(float* row, float factor, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::Set(d, factor)), d, row + i);
  for (; i < count; ++i) row[i] *= factor;
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(AddMask);
HWY_EXPORT(ApplyBoolMask);
HWY_EXPORT(Exponentiate);
HWY_EXPORT(ScaleRow);

namespace {

constexpr std::int64_t kMaxBlockRows = 128;

// Each row of a block needs space for its scores and for 1 / sum.
std::size_t scratch_for(std::int64_t rows, std::int64_t k_len) { return static_cast<std::size_t>(rows * (k_len + 1)); }

Status check(const AttentionCall& call, std::size_t scratch) {
  if (call.batch < 0 || call.heads < 0 || call.q_len < 0 || call.k_len < 0 || call.head_dim <= 0 ||
      call.value_dim <= 0 || call.kv_heads <= 0 || call.heads % call.kv_heads != 0) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format(
            "attention: invalid sizes: batch {}, {} heads over {} key heads (must be a divisor), {} queries, {} keys, "
            "head size {} and {}",
            call.batch, call.heads, call.kv_heads, call.q_len, call.k_len, call.head_dim, call.value_dim)};
  }
  if (call.mask.kind != MaskKind::kNone && call.mask.data == nullptr) {
    return {StatusCode::kInvalidArgument, "attention: the mask has no data"};
  }
  if (scratch < attention_scratch_min(call)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("attention: {} floats of scratch are too few, at least {} are needed", scratch,
                        attention_scratch_min(call))};
  }
  return {};
}

// Number of keys that query `row` may attend.
std::int64_t visible_keys(const AttentionCall& call, std::int64_t row) {
  return call.causality == Causality::kCausal ? std::min(call.k_len, row + 1) : call.k_len;
}

void mask_row(const AttentionCall& call, std::int64_t batch, std::int64_t head, std::int64_t row, float* scores,
              std::int64_t keys) {
  const AttentionMask& mask = call.mask;
  const std::int64_t offset = batch * mask.batch_stride + head * mask.head_stride + row * mask.row_stride;
  if (mask.kind == MaskKind::kAdditive) {
    const float* const values = static_cast<const float*>(mask.data) + offset;
    HWY_DYNAMIC_DISPATCH(AddMask)(scores, values, mask.column_stride, static_cast<std::size_t>(keys));
  } else if (mask.kind == MaskKind::kBool) {
    const std::uint8_t* const values = static_cast<const std::uint8_t*>(mask.data) + offset;
    HWY_DYNAMIC_DISPATCH(ApplyBoolMask)(scores, values, mask.column_stride, static_cast<std::size_t>(keys));
  }
}

// Computes rows [first, first + rows) of one head.
Status attend(const AttentionCall& call, std::int64_t batch, std::int64_t head, std::int64_t first, std::int64_t rows,
              std::span<float> scratch) {
  const std::int64_t kv_head = head / (call.heads / call.kv_heads);
  const std::int64_t keys = visible_keys(call, first + rows - 1);
  float* const scores = scratch.data();
  float* const factors = scores + rows * keys;
  float* const output = call.output.data + batch * call.output.batch_stride + head * call.output.head_stride +
                        first * call.output.row_stride;

  ACCORD_RETURN_IF_ERROR(
      gemm({.m = rows,
            .n = keys,
            .k = call.head_dim,
            .a = call.q.data + batch * call.q.batch_stride + head * call.q.head_stride + first * call.q.row_stride,
            .a_row_stride = call.q.row_stride,
            .b = call.k.data + batch * call.k.batch_stride + kv_head * call.k.head_stride,
            .b_row_stride = call.k.row_stride,
            .transpose_b = Transpose::kYes,
            .c = scores,
            .c_row_stride = keys,
            .alpha = call.scale}));
  for (std::int64_t row = 0; row < rows; ++row) {
    float* const row_scores = scores + row * keys;
    const std::int64_t visible = visible_keys(call, first + row);
    mask_row(call, batch, head, first + row, row_scores, visible);
    factors[row] = HWY_DYNAMIC_DISPATCH(Exponentiate)(row_scores, static_cast<std::size_t>(visible));
    std::fill(row_scores + visible, row_scores + keys, 0.0F);
  }
  ACCORD_RETURN_IF_ERROR(gemm({.m = rows,
                               .n = call.value_dim,
                               .k = keys,
                               .a = scores,
                               .a_row_stride = keys,
                               .b = call.v.data + batch * call.v.batch_stride + kv_head * call.v.head_stride,
                               .b_row_stride = call.v.row_stride,
                               .c = output,
                               .c_row_stride = call.output.row_stride}));
  for (std::int64_t row = 0; row < rows; ++row) {
    HWY_DYNAMIC_DISPATCH(ScaleRow)
    (output + row * call.output.row_stride, factors[row], static_cast<std::size_t>(call.value_dim));
  }
  return {};
}

}  // namespace

std::size_t attention_scratch(const AttentionCall& call) {
  return scratch_for(std::clamp<std::int64_t>(call.q_len, 1, kMaxBlockRows), call.k_len);
}

std::size_t attention_scratch_min(const AttentionCall& call) { return scratch_for(1, call.k_len); }

Status attention(const AttentionCall& call, std::span<float> scratch) {
  ACCORD_RETURN_IF_ERROR(check(call, scratch.size()));
  const std::int64_t fitting = static_cast<std::int64_t>(scratch.size()) / (call.k_len + 1);
  const std::int64_t block = std::min(fitting, kMaxBlockRows);
  for (std::int64_t batch = 0; batch < call.batch; ++batch) {
    for (std::int64_t head = 0; head < call.heads; ++head) {
      for (std::int64_t first = 0; first < call.q_len; first += block) {
        ACCORD_RETURN_IF_ERROR(attend(call, batch, head, first, std::min(block, call.q_len - first), scratch));
      }
    }
  }
  return {};
}

}  // namespace accord::kernels
#endif
