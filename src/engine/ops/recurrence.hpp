#pragma once
// Calls of layers that keep a state for each sequence. All tensors have float32, with their last dimension contiguous.

#include <optional>

#include "engine/program/preparation.hpp"

namespace accord::engine {

/// A causal convolution of each channel over the tokens of its sequence (kernels::CausalConvolution). Its state is the
/// inputs of the last taps - 1 tokens: [taps - 1, channels].
struct CausalConvolutionCall {
  std::int64_t state = 0;  ///< number of the state in the cache
  Tensor input;            ///< [tokens, channels]
  Tensor weight;           ///< [channels, taps]
  std::optional<Tensor> bias;
  Tensor output;  ///< [tokens, channels]
};

/// A linear recurrence over the tokens of each sequence (kernels::LinearRecurrence). Its state is [heads, key size,
/// value size]. The heads of query and key divide those of value: heads of value that follow each other share one.
struct LinearRecurrenceCall {
  std::int64_t state = 0;      ///< number of the state in the cache
  Tensor query, key;           ///< [tokens, key heads, key size]
  Tensor value;                ///< [tokens, heads, value size]
  Tensor decay;                ///< [tokens, heads, 1 or key size]
  std::optional<Tensor> beta;  ///< [tokens, heads, 1]
  Tensor output;               ///< [tokens, heads, value size]
};

/// The attention of RWKV 4 over the tokens of each sequence (kernels::Wkv). Its state is [3, channels].
struct WkvCall {
  std::int64_t state = 0;  ///< number of the state in the cache
  Tensor key, value;       ///< [tokens, channels]
  Tensor decay, bonus;     ///< [channels]
  Tensor output;           ///< [tokens, channels]
};

}  // namespace accord::engine
