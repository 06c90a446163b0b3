#pragma once
// Layers that keep a state of fixed size from token to token: causal convolutions and linear recurrences (state space
// models, gated delta rules, linear attention, the attention of RWKV).

#include <cstdint>

namespace accord::kernels {

/// [rows, n] of float32, with n contiguous.
struct ConstFloatRows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};
struct FloatRows {
  float* data = nullptr;
  std::int64_t stride = 0;
};

/// Channel c of row t is bias[c] + the sum over taps j of weight[c][j] * x[t - taps + 1 + j][c].
struct CausalConvolution {
  std::int64_t rows = 0, channels = 0;
  std::int64_t taps = 1;
  ConstFloatRows x;
  const float* weight = nullptr;  ///< [channels][taps]
  const float* bias = nullptr;    ///< [channels], or null
  FloatRows y;

  /// Inputs of a row, counted from the first of this call. Those before it are in `state` of causal_convolution().
  const float* input(const FloatRows& state, std::int64_t row) const {
    return row < 0 ? state.data + (taps - 1 + row) * state.stride : x.data + row * x.stride;
  }
};

/// Computes rows of one sequence. `state`: [taps - 1] rows, the inputs before the first row, oldest first, zeros where
/// the sequence begins; afterwards the inputs before the row that follows. y must not overlap x.
void causal_convolution(const CausalConvolution& call, const FloatRows& state);

/// One head of a linear recurrence. Its state S is [key_size][value_size], and each row in turn gives
///
///   S := diag(decay) S;  d := beta (value - S^T key) with a beta, else value;  S := S + key d^T;  y := S^T query.
struct LinearRecurrence {
  std::int64_t rows = 0;
  std::int64_t key_size = 0, value_size = 0;
  ConstFloatRows query, key;    ///< of key_size
  ConstFloatRows value;         ///< of value_size
  ConstFloatRows decay;         ///< of decay_size: one factor, or one for each element of a key
  std::int64_t decay_size = 1;  ///< 1 or key_size
  const float* beta = nullptr;  ///< of row 0, or null
  std::int64_t beta_stride = 0;
  FloatRows y;  ///< of value_size
};

/// Computes rows of one sequence. `state` is S before the first row, and afterwards S after the last. Cost: one pass
/// over S for each row, two with a beta.
void linear_recurrence(const LinearRecurrence& call, float* state);

/// The attention of RWKV 4. Channel c of row t is a mean of the values of rows i <= t, weighted by exp(w_i), where
/// w_t = key[t][c] + bonus[c] for the row itself, and w_i = key[i][c] + (t - 1 - i) decay[c] for the rows before it.
struct Wkv {
  std::int64_t rows = 0, channels = 0;
  ConstFloatRows key, value;
  const float* decay = nullptr;  ///< [channels], at most 0
  const float* bonus = nullptr;  ///< [channels]
  FloatRows y;                   ///< must not overlap key and value
};

/// Computes rows of one sequence. `state`: [3] rows of sums over the rows before: of weight times value, of weights,
/// and the number m such that they are sums of exp(w_i - m); zeros where the sequence begins. No exponential overflows.
void wkv(const Wkv& call, const FloatRows& state);

}  // namespace accord::kernels
