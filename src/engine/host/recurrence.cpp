// Layers that keep a state for each sequence. A part of the work is some heads, or a range of channels, of one
// sequence.
//
// The state of a sequence's tokens up to the last one of a block belongs to that block of the cache (KeyValueCache). So
// where a row begins a new block, the state is copied there first, and a full block keeps the state after its last
// token, for other sequences that begin with the same tokens.
#include "engine/ops/recurrence.hpp"

#include <algorithm>
#include <functional>

#include "base/rounding.hpp"
#include "engine/graph/ops.hpp"
#include "engine/host/row_parts.hpp"
#include "engine/host/steps.hpp"
#include "kernels/recurrence.hpp"

namespace accord::engine::host {
namespace {

constexpr std::int64_t kChannelsOfPart = 512;
constexpr std::int64_t kFloatsOfPart = 4096;  // of states; at least a head

/// Rows [first, first + rows) of a run that lie in one block of their sequence, and its state. `before`: the state of
/// the block before it if the first row begins a block; null at the beginning of a sequence.
struct BlockRows {
  std::int64_t first = 0, rows = 0;
  float* state = nullptr;
  const float* before = nullptr;
  bool begins_block = false;
};

void for_blocks(const SequenceStates& states, const BatchRows& sequence, const auto& body) {
  const kernels::SequenceRows& rows = sequence.rows;
  const auto state_of = [&](std::int64_t token) {
    return states.data + rows.blocks[static_cast<std::size_t>(token / states.block_tokens)] * states.floats;
  };
  for (std::int64_t row = 0; row < rows.rows;) {
    const std::int64_t token = rows.context + row, in_block = token % states.block_tokens;
    BlockRows block{sequence.first_row + row, std::min(rows.rows - row, states.block_tokens - in_block),
                    state_of(token)};
    block.begins_block = in_block == 0;
    if (in_block == 0 && token > 0) block.before = state_of(token - 1);
    body(block);
    row += block.rows;
  }
}

// Sets the part [from, from + count) of a block's state where the block begins.
void begin_state(const BlockRows& block, std::int64_t from, std::int64_t count) {
  if (!block.begins_block) return;
  if (block.before == nullptr) {
    std::fill_n(block.state + from, count, 0.0F);
  } else {
    std::copy_n(block.before + from, count, block.state + from);
  }
}

// Calls body(sequence, part) for each sequence of the batch and each part, on all threads.
Status for_sequences(const Execution& execution, std::int64_t parts,
                     const std::function<void(const BatchRows&, std::int64_t)>& body) {
  const auto sequences = static_cast<std::int64_t>(execution.batch.size());
  return pool_of(execution).run(static_cast<int>(parts * sequences), [&](int part) {
    body(execution.batch[static_cast<std::size_t>(part / parts)], part % parts);
    return Status();
  });
}

Status run_convolution(const CausalConvolutionCall& call, const Execution& execution) {
  const SequenceStates& states = run_of(execution).cache->state(call.state);
  const std::int64_t channels = call.input.size(1), taps = call.weight.size(1);
  return for_sequences(
      execution, quotient_up(channels, kChannelsOfPart), [&](const BatchRows& sequence, std::int64_t part) {
        const std::int64_t first = part * kChannelsOfPart;
        kernels::CausalConvolution kernel;
        kernel.channels = std::min(kChannelsOfPart, channels - first);
        kernel.taps = taps;
        kernel.weight = execution.data<const float>(call.weight) + first * taps;
        if (call.bias) kernel.bias = execution.data<const float>(*call.bias) + first;
        for_blocks(states, sequence, [&](const BlockRows& block) {
          kernel.rows = block.rows;
          kernel.x = {execution.data<const float>(call.input) + block.first * call.input.stride(0) + first,
                      call.input.stride(0)};
          kernel.y = {execution.data<float>(call.output) + block.first * call.output.stride(0) + first,
                      call.output.stride(0)};
          for (std::int64_t row = 0; row + 1 < taps; ++row) begin_state(block, row * channels + first, kernel.channels);
          kernels::causal_convolution(kernel, {block.state + first, channels});
        });
      });
}

kernels::ConstFloatRows head_rows(const Execution& execution, const Tensor& tensor, std::int64_t row,
                                  std::int64_t head) {
  return {execution.data<const float>(tensor) + row * tensor.stride(0) + head * tensor.stride(1), tensor.stride(0)};
}

Status run_recurrence(const LinearRecurrenceCall& call, const Execution& execution) {
  const SequenceStates& states = run_of(execution).cache->state(call.state);
  const std::int64_t heads = call.value.size(1), heads_per_key = heads / call.key.size(1);
  const std::int64_t size = call.key.size(2) * call.value.size(2);
  const auto run_head = [&](const BatchRows& sequence, std::int64_t head) {
    kernels::LinearRecurrence kernel;
    kernel.key_size = call.key.size(2);
    kernel.value_size = call.value.size(2);
    kernel.decay_size = call.decay.size(2);
    for_blocks(states, sequence, [&](const BlockRows& block) {
      kernel.rows = block.rows;
      kernel.query = head_rows(execution, call.query, block.first, head / heads_per_key);
      kernel.key = head_rows(execution, call.key, block.first, head / heads_per_key);
      kernel.value = head_rows(execution, call.value, block.first, head);
      kernel.decay = head_rows(execution, call.decay, block.first, head);
      if (call.beta) {
        const kernels::ConstFloatRows beta = head_rows(execution, *call.beta, block.first, head);
        kernel.beta = beta.data;
        kernel.beta_stride = beta.stride;
      }
      kernel.y = {
          execution.data<float>(call.output) + block.first * call.output.stride(0) + head * call.output.stride(1),
          call.output.stride(0)};
      begin_state(block, head * size, size);
      kernels::linear_recurrence(kernel, block.state + head * size);
    });
  };
  const std::int64_t heads_of_part = std::max<std::int64_t>(1, kFloatsOfPart / std::max<std::int64_t>(size, 1));
  return for_sequences(execution, quotient_up(heads, heads_of_part), [&](const BatchRows& sequence, std::int64_t part) {
    const std::int64_t end = std::min(heads, (part + 1) * heads_of_part);
    for (std::int64_t head = part * heads_of_part; head < end; ++head) run_head(sequence, head);
  });
}

Status run_wkv(const WkvCall& call, const Execution& execution) {
  const SequenceStates& states = run_of(execution).cache->state(call.state);
  const std::int64_t channels = call.key.size(1);
  return for_sequences(execution, quotient_up(channels, kChannelsOfPart),
                       [&](const BatchRows& sequence, std::int64_t part) {
                         const std::int64_t first = part * kChannelsOfPart;
                         kernels::Wkv kernel;
                         kernel.channels = std::min(kChannelsOfPart, channels - first);
                         kernel.decay = execution.data<const float>(call.decay) + first;
                         kernel.bonus = execution.data<const float>(call.bonus) + first;
                         const auto rows_of = [&](const Tensor& tensor, std::int64_t row) {
                           return kernels::ConstFloatRows{
                               execution.data<const float>(tensor) + row * tensor.stride(0) + first, tensor.stride(0)};
                         };
                         for_blocks(states, sequence, [&](const BlockRows& block) {
                           kernel.rows = block.rows;
                           kernel.key = rows_of(call.key, block.first);
                           kernel.value = rows_of(call.value, block.first);
                           kernel.y = {execution.data<float>(call.output) + block.first * call.output.stride(0) + first,
                                       call.output.stride(0)};
                           for (std::int64_t row = 0; row < kWkvStateRows; ++row)
                             begin_state(block, row * channels + first, kernel.channels);
                           kernels::wkv(kernel, {block.state + first, channels});
                         });
                       });
}

Status add_convolution(Preparation& op, const CausalConvolutionCall& call) {
  for (const Tensor* tensor : {&call.input, &call.output})
    ACCORD_RETURN_IF_ERROR(op.require(*tensor, {DType::kFloat32}));
  op.step([call](const Execution& execution) { return run_convolution(call, execution); });
  return Status();
}

Status add_recurrence(Preparation& op, const LinearRecurrenceCall& call) {
  for (const Tensor* tensor : {&call.query, &call.key, &call.value, &call.decay, &call.output})
    ACCORD_RETURN_IF_ERROR(op.require(*tensor, {DType::kFloat32}));
  if (call.beta) ACCORD_RETURN_IF_ERROR(op.require(*call.beta, {DType::kFloat32}));
  op.step([call](const Execution& execution) { return run_recurrence(call, execution); });
  return Status();
}

Status add_wkv(Preparation& op, const WkvCall& call) {
  for (const Tensor* tensor : {&call.key, &call.value, &call.output})
    ACCORD_RETURN_IF_ERROR(op.require(*tensor, {DType::kFloat32}));
  op.step([call](const Execution& execution) { return run_wkv(call, execution); });
  return Status();
}

}  // namespace

void set_recurrence_steps(StepTable& table) {
  table.set<CausalConvolutionCall>(add_convolution);
  table.set<LinearRecurrenceCall>(add_recurrence);
  table.set<WkvCall>(add_wkv);
}

}  // namespace accord::engine::host
