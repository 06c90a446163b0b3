// The columns of a recurrence's state are independent of each other: a few vectors of columns pass through all rows
// before the next ones, so that their part of the state stays in the L1 cache. All sums are in a fixed order.
#include "kernels/recurrence.hpp"

#include <algorithm>

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/recurrence.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on
#include "kernels/math_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Computes kVectors vectors of columns from `column` on.
template <int kVectors, class D>
void RecurColumns(D d, const LinearRecurrence& call, float* state, std::int64_t column) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t decay_step = call.decay_size == 1 ? 0 : 1;
  state += column;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const float* const query = call.query.data + row * call.query.stride;
    const float* const key = call.key.data + row * call.key.stride;
    const float* const decay = call.decay.data + row * call.decay.stride;
    V change[kVectors], sum[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      change[i] = hn::LoadU(d, call.value.data + row * call.value.stride + column + i * lanes);
      sum[i] = hn::Zero(d);
    }
    if (call.beta != nullptr) {
      for (std::int64_t k = 0; k < call.key_size; ++k) {
        const V factor = hn::Set(d, key[k] * decay[k * decay_step]);
        for (int i = 0; i < kVectors; ++i)
          sum[i] = hn::MulAdd(factor, hn::LoadU(d, state + k * call.value_size + i * lanes), sum[i]);
      }
      const V beta = hn::Set(d, call.beta[row * call.beta_stride]);
      for (int i = 0; i < kVectors; ++i) {
        change[i] = hn::Mul(beta, hn::Sub(change[i], sum[i]));
        sum[i] = hn::Zero(d);
      }
    }
    for (std::int64_t k = 0; k < call.key_size; ++k) {
      const V factor = hn::Set(d, decay[k * decay_step]), add = hn::Set(d, key[k]), read = hn::Set(d, query[k]);
      for (int i = 0; i < kVectors; ++i) {
        float* const at = state + k * call.value_size + i * lanes;
        const V after = hn::MulAdd(add, change[i], hn::Mul(factor, hn::LoadU(d, at)));
        hn::StoreU(after, d, at);
        sum[i] = hn::MulAdd(read, after, sum[i]);
      }
    }
    for (int i = 0; i < kVectors; ++i) hn::StoreU(sum[i], d, call.y.data + row * call.y.stride + column + i * lanes);
  }
}

void Recur(const LinearRecurrence& call, float* state) {
  constexpr int kVectors = 4;
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> single;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t column = 0;
  for (; column + kVectors * lanes <= call.value_size; column += kVectors * lanes)
    RecurColumns<kVectors>(d, call, state, column);
  for (; column + lanes <= call.value_size; column += lanes) RecurColumns<1>(d, call, state, column);
  for (; column < call.value_size; ++column) RecurColumns<1>(single, call, state, column);
}

// Channels and taps of a convolution whose weights are transposed together.
constexpr std::int64_t kChannels = 64, kTaps = 8;
struct TapWeights {
  std::int64_t channels = 0, taps = 0;
  float values[kTaps][kChannels] = {};
};

// Adds the products of the taps to outputs of a row, from channel `c` of those in `weights` on. `sums` are the outputs
// so far. Returns the channel after the last one that fills a vector.
template <class D>
HWY_INLINE std::int64_t AddTaps(D d, const TapWeights& weights, const float* const (&x)[kTaps], const float* sums,
                                std::int64_t c, float* y) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (; c + lanes <= weights.channels; c += lanes) {
    auto sum = sums == nullptr ? hn::Zero(d) : hn::LoadU(d, sums + c);
    for (std::int64_t tap = 0; tap < weights.taps; ++tap)
      sum = hn::MulAdd(hn::LoadU(d, weights.values[tap] + c), hn::LoadU(d, x[tap] + c), sum);
    hn::StoreU(sum, d, y + c);
  }
  return c;
}

void Convolve(const CausalConvolution& call, const FloatRows& state) {
  TapWeights weights;
  for (std::int64_t first = 0; first < call.channels; first += kChannels) {
    weights.channels = std::min(kChannels, call.channels - first);
    for (std::int64_t first_tap = 0; first_tap < call.taps; first_tap += kTaps) {
      weights.taps = std::min(kTaps, call.taps - first_tap);
      for (std::int64_t tap = 0; tap < weights.taps; ++tap) {
        const float* const from = call.weight + first * call.taps + first_tap + tap;
        for (std::int64_t c = 0; c < weights.channels; ++c) weights.values[tap][c] = from[c * call.taps];
      }
      for (std::int64_t row = 0; row < call.rows; ++row) {
        const float* x[kTaps] = {};
        for (std::int64_t tap = 0; tap < weights.taps; ++tap)
          x[tap] = call.input(state, row - (call.taps - 1) + first_tap + tap) + first;
        float* const y = call.y.data + row * call.y.stride + first;
        const float* const bias = call.bias == nullptr ? nullptr : call.bias + first;
        const float* const sums = first_tap == 0 ? bias : y;
        const std::int64_t done = AddTaps(hn::ScalableTag<float>(), weights, x, sums, 0, y);
        AddTaps(hn::CappedTag<float, 1>(), weights, x, sums, done, y);
      }
    }
  }
}

// Computes all rows of the channels from `c` on that fill vectors; returns the channel after them.
template <class D>
std::int64_t WkvColumns(D d, const Wkv& call, const FloatRows& state, std::int64_t c) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (; c + lanes <= call.channels; c += lanes) {
    const V decay = hn::LoadU(d, call.decay + c), bonus = hn::LoadU(d, call.bonus + c);
    V sum = hn::LoadU(d, state.data + c), weights = hn::LoadU(d, state.data + state.stride + c);
    V most = hn::LoadU(d, state.data + 2 * state.stride + c);
    most = hn::IfThenElse(hn::Eq(weights, hn::Zero(d)), hn::Set(d, -1e38F), most);  // there is no row yet
    for (std::int64_t row = 0; row < call.rows; ++row) {
      const V key = hn::LoadU(d, call.key.data + row * call.key.stride + c);
      const V value = hn::LoadU(d, call.value.data + row * call.value.stride + c);
      const V own = hn::Add(key, bonus), top = hn::Max(most, own);
      const V before = ExpNonPositive(d, hn::Sub(most, top)), now = ExpNonPositive(d, hn::Sub(own, top));
      hn::StoreU(hn::Div(hn::MulAdd(now, value, hn::Mul(before, sum)), hn::MulAdd(before, weights, now)), d,
                 call.y.data + row * call.y.stride + c);
      const V faded = hn::Add(most, decay);
      most = hn::Max(faded, key);
      const V old = ExpNonPositive(d, hn::Sub(faded, most)), add = ExpNonPositive(d, hn::Sub(key, most));
      sum = hn::MulAdd(add, value, hn::Mul(old, sum));
      weights = hn::MulAdd(old, weights, add);
    }
    hn::StoreU(sum, d, state.data + c);
    hn::StoreU(weights, d, state.data + state.stride + c);
    hn::StoreU(most, d, state.data + 2 * state.stride + c);
  }
  return c;
}

void ComputeWkv(const Wkv& call, const FloatRows& state) {
  const std::int64_t done = WkvColumns(hn::ScalableTag<float>(), call, state, 0);
  WkvColumns(hn::CappedTag<float, 1>(), call, state, done);
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(Recur);
HWY_EXPORT(Convolve);
HWY_EXPORT(ComputeWkv);

void linear_recurrence(const LinearRecurrence& call, float* state) { HWY_DYNAMIC_DISPATCH(Recur)(call, state); }

void causal_convolution(const CausalConvolution& call, const FloatRows& state) {
  HWY_DYNAMIC_DISPATCH(Convolve)(call, state);
  const std::int64_t before = call.taps - 1;
  for (std::int64_t i = 0; i < before; ++i) {  // reads only rows that are not overwritten yet
    const float* const from = call.input(state, call.rows - before + i);
    std::copy(from, from + call.channels, state.data + i * state.stride);
  }
}

void wkv(const Wkv& call, const FloatRows& state) { HWY_DYNAMIC_DISPATCH(ComputeWkv)(call, state); }

}  // namespace accord::kernels
#endif  // HWY_ONCE
