// Causal convolutions, linear recurrences and the attention of RWKV compared with their definitions in double
// precision.
#include "kernels/recurrence.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "every_instruction_set.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

class Recurrence : public EveryInstructionSet {};
ACCORD_ON_EVERY_INSTRUCTION_SET(Recurrence);

std::vector<float> random_rows(std::int64_t rows, std::int64_t width, unsigned seed) {
  return random_floats(static_cast<std::size_t>(rows * width), seed);
}

struct Inputs {
  std::int64_t rows = 7, key_size = 5, value_size = 3, decay_size = 1;
  bool has_beta = false;
  std::vector<float> query, key, value, decay, beta;

  Inputs(std::int64_t keys, std::int64_t values, bool decays_by_element, bool beta_)
      : key_size(keys), value_size(values), decay_size(decays_by_element ? keys : 1), has_beta(beta_) {
    query = random_rows(rows, key_size, 1);
    key = random_rows(rows, key_size, 2);
    value = random_rows(rows, value_size, 3);
    decay = random_rows(rows, decay_size, 4);
    beta = random_rows(rows, 1, 5);
    for (float& one : key) one /= std::sqrt(static_cast<float>(key_size));
    for (float& one : decay) one = 0.5F + std::abs(one) / 4;
  }

  /// The call of rows [first, first + count).
  LinearRecurrence call(std::int64_t first, std::int64_t count, float* y) const {
    LinearRecurrence made;
    made.rows = count;
    made.key_size = key_size;
    made.value_size = value_size;
    made.query = {query.data() + first * key_size, key_size};
    made.key = {key.data() + first * key_size, key_size};
    made.value = {value.data() + first * value_size, value_size};
    made.decay = {decay.data() + first * decay_size, decay_size};
    made.decay_size = decay_size;
    if (has_beta) made.beta = beta.data() + first;
    made.beta_stride = 1;
    made.y = {y + first * value_size, value_size};
    return made;
  }

  std::vector<double> expected(std::vector<double> state) const {
    std::vector<double> y;
    const auto at = [](const std::vector<float>& all, std::int64_t i) {
      return static_cast<double>(all[static_cast<std::size_t>(i)]);
    };
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t v = 0; v < value_size; ++v) {
        double seen = 0, read = 0;
        const auto cell = [&](std::int64_t k) -> double& {
          return state[static_cast<std::size_t>(k * value_size + v)];
        };
        for (std::int64_t k = 0; k < key_size; ++k) {
          cell(k) *= at(decay, t * decay_size + (decay_size == 1 ? 0 : k));
          seen += cell(k) * at(key, t * key_size + k);
        }
        double change = at(value, t * value_size + v);
        if (has_beta) change = at(beta, t) * (change - seen);
        for (std::int64_t k = 0; k < key_size; ++k) {
          cell(k) += at(key, t * key_size + k) * change;
          read += cell(k) * at(query, t * key_size + k);
        }
        y.push_back(read);
      }
    }
    return y;
  }
};

TEST_P(Recurrence, matches_its_definition_and_goes_on_where_it_stopped) {
  for (const std::int64_t keys : {1, 5, 64}) {
    for (const std::int64_t values : {1, 3, 16, 37, 128}) {
      for (int kind = 0; kind < 4; ++kind) {
        const Inputs inputs(keys, values, kind % 2 == 1, kind >= 2);
        const std::vector<float> begin = random_rows(keys, values, 6);
        const std::vector<double> expected = inputs.expected({begin.begin(), begin.end()});
        std::vector<float> state = begin, parted = begin, y(expected.size()), y_parted(expected.size());
        linear_recurrence(inputs.call(0, inputs.rows, y.data()), state.data());
        for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-4) << keys << " x " << values;
        linear_recurrence(inputs.call(0, 2, y_parted.data()), parted.data());
        linear_recurrence(inputs.call(2, inputs.rows - 2, y_parted.data()), parted.data());
        ASSERT_EQ(y_parted, y);
        ASSERT_EQ(parted, state);
      }
    }
  }
}

// By the sum over all rows, with its largest exponent taken out.
double expected_wkv(const std::vector<float>& key, const std::vector<float>& value, std::int64_t channels, double decay,
                    double bonus, std::int64_t row, std::int64_t channel) {
  const auto at = [&](const std::vector<float>& all, std::int64_t i) {
    return static_cast<double>(all[static_cast<std::size_t>(i * channels + channel)]);
  };
  const auto exponent = [&](std::int64_t i) {
    return at(key, i) + (i == row ? bonus : static_cast<double>(row - 1 - i) * decay);
  };
  double most = exponent(0), sum = 0, weights = 0;
  for (std::int64_t i = 1; i <= row; ++i) most = std::max(most, exponent(i));
  for (std::int64_t i = 0; i <= row; ++i) {
    sum += std::exp(exponent(i) - most) * at(value, i);
    weights += std::exp(exponent(i) - most);
  }
  return sum / weights;
}

TEST_P(Recurrence, the_attention_of_rwkv_matches_its_definition_for_keys_of_any_size) {
  constexpr std::int64_t kRows = 9;
  for (const std::int64_t channels : {1, 7, 64, 150}) {
    for (const float scale : {1.0F, 60.0F, 1000.0F}) {  // exp(1000) is no float
      std::vector<float> key = random_rows(kRows, channels, 1), decay = random_rows(1, channels, 3);
      const std::vector<float> value = random_rows(kRows, channels, 2), bonus = random_rows(1, channels, 4);
      for (float& one : key) one *= scale;
      for (float& one : decay) one = -std::abs(one);
      std::vector<float> y(key.size()), state(static_cast<std::size_t>(3 * channels));
      for (const auto& [first, rows] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 4}, {5, kRows - 5}}) {
        const auto from = [&, at = first * channels](const std::vector<float>& all) {
          return ConstFloatRows{all.data() + at, channels};
        };
        wkv({.rows = rows,
             .channels = channels,
             .key = from(key),
             .value = from(value),
             .decay = decay.data(),
             .bonus = bonus.data(),
             .y = {y.data() + first * channels, channels}},
            {state.data(), channels});
      }
      for (std::int64_t t = 0; t < kRows; ++t) {
        for (std::int64_t c = 0; c < channels; ++c) {
          const auto i = static_cast<std::size_t>(c);
          ASSERT_NEAR(
              y[static_cast<std::size_t>(t * channels + c)],
              expected_wkv(key, value, channels, static_cast<double>(decay[i]), static_cast<double>(bonus[i]), t, c),
              1e-4)
              << channels << " channels, keys of " << scale;
        }
      }
    }
  }
}

TEST(CausalConvolutions, match_their_definition_and_go_on_where_they_stopped) {
  constexpr std::int64_t kRows = 9, kChannels = 150;
  for (const std::int64_t taps : {1, 2, 4, 12}) {
    const std::vector<float> x = random_rows(kRows, kChannels, 1), weight = random_rows(kChannels, taps, 2);
    const std::vector<float> bias = random_rows(1, kChannels, 3), begin = random_rows(taps - 1, kChannels, 4);
    for (const std::int64_t cut : {std::int64_t{0}, std::int64_t{1}, std::int64_t{5}, kRows}) {
      std::vector<float> y(x.size()), state = begin;
      for (const auto& [first, rows] : {std::pair{std::int64_t{0}, cut}, {cut, kRows - cut}}) {
        CausalConvolution call;
        call.rows = rows;
        call.channels = kChannels;
        call.taps = taps;
        call.x = {x.data() + first * kChannels, kChannels};
        call.weight = weight.data();
        call.bias = bias.data();
        call.y = {y.data() + first * kChannels, kChannels};
        causal_convolution(call, {state.data(), kChannels});
      }
      std::vector<float> all = begin;
      all.insert(all.end(), x.begin(), x.end());
      for (std::int64_t t = 0; t < kRows; ++t) {
        for (std::int64_t c = 0; c < kChannels; ++c) {
          auto sum = static_cast<double>(bias[static_cast<std::size_t>(c)]);
          for (std::int64_t j = 0; j < taps; ++j)
            sum += static_cast<double>(weight[static_cast<std::size_t>(c * taps + j)]) *
                   static_cast<double>(all[static_cast<std::size_t>((t + j) * kChannels + c)]);
          ASSERT_NEAR(y[static_cast<std::size_t>(t * kChannels + c)], sum, 1e-5) << taps << " taps, cut " << cut;
        }
      }
      ASSERT_EQ(state, std::vector<float>(all.end() - (taps - 1) * kChannels, all.end())) << taps << " taps";
    }
  }
}

}  // namespace
}  // namespace accord::kernels
