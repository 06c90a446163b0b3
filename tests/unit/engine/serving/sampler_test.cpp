// From logits to tokens, compared with a slow reference that sorts everything and computes in double.
#include "engine/serving/sampler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "engine/serving/philox.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfiniteLogit = std::numeric_limits<float>::infinity();

TEST(Philox, matches_the_published_numbers) {  // kat_vectors of Random123
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

std::vector<float> random_logits(std::size_t count, std::uint32_t seed, float spread = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Returns the tokens that transformers' processors leave, in the processors' order; ties at an edge stay.
std::map<TokenId, double> reference(const std::vector<float>& logits, const GenerationRequest& request,
                                    const std::vector<TokenId>& generated) {
  const SamplingOptions& sampling = request.sampling;
  std::vector<double> scores(logits.begin(), logits.end());
  for (const LogitBias& bias : sampling.biases)
    scores[static_cast<std::size_t>(bias.token)] += static_cast<double>(bias.bias);
  std::set<TokenId> seen(request.prompt.begin(), request.prompt.end());
  seen.insert(generated.begin(), generated.end());
  const auto repetition = static_cast<double>(sampling.repetition_penalty);
  for (const TokenId token : seen) {
    double& score = scores[static_cast<std::size_t>(token)];
    score = score < 0 ? score * repetition : score / repetition;
  }
  for (const TokenId token : generated)
    scores[static_cast<std::size_t>(token)] -= static_cast<double>(sampling.frequency_penalty);
  for (const TokenId token : std::set<TokenId>(generated.begin(), generated.end()))
    scores[static_cast<std::size_t>(token)] -= static_cast<double>(sampling.presence_penalty);
  for (double& score : scores) score /= static_cast<double>(sampling.temperature);
  std::vector<double> sorted = scores;
  std::sort(sorted.rbegin(), sorted.rend());
  const std::size_t k =
      sampling.top_k == 0 ? scores.size() : std::min(scores.size(), static_cast<std::size_t>(sampling.top_k));
  const double kth = sorted[k - 1];
  const double best = sorted[0];
  double sum = 0;
  for (const double score : sorted) sum += score >= kth ? std::exp(score - best) : 0;
  double least = -std::numeric_limits<double>::infinity();
  double above = 0;
  for (const double score : sorted) {
    if (sampling.top_p < 1 && above >= static_cast<double>(sampling.top_p) * sum && score < sorted[0]) break;
    least = score;
    above += std::exp(score - best);
  }
  std::map<TokenId, double> kept;
  double total = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - best);
    if (scores[i] < kth || (sampling.top_p < 1 && scores[i] < least) || weight < static_cast<double>(sampling.min_p) ||
        weight == 0)
      continue;
    kept[static_cast<TokenId>(i)] = weight;
    total += weight;
  }
  for (auto& [token, weight] : kept) weight /= total;
  return kept;
}

void expect_like_reference(const std::vector<float>& logits, const GenerationRequest& request,
                           const std::vector<TokenId>& generated) {
  Sampler sampler(static_cast<std::int32_t>(logits.size()));
  const auto expected = reference(logits, request, generated);
  const auto kept = sampler.distribution(logits, {&request, generated, 0});
  ASSERT_TRUE(kept.ok());
  double missing = 1;
  for (const auto& [token, probability] : *kept) {
    const auto found = expected.find(token);
    ASSERT_NE(found, expected.end()) << "token " << token << " was kept";
    ASSERT_NEAR(probability, found->second, 1e-6);
    missing -= found->second;
  }
  EXPECT_NEAR(missing, 0, 1e-5);  // tokens less than half a billionth as likely as the best
}

TEST(Sampler, keeps_the_tokens_of_a_slow_reference) {
  std::mt19937 random(11);
  for (std::uint32_t round = 0; round < 400; ++round) {
    const auto logits = random_logits(50 + random() % 1500, round, 0.5F + static_cast<float>(random() % 6));
    GenerationRequest request;
    SamplingOptions& sampling = request.sampling;
    sampling.temperature = 0.3F + static_cast<float>(random() % 20) / 10;
    if (random() % 2 == 0) sampling.top_k = 1 + static_cast<int>(random() % 80);
    if (random() % 2 == 0) sampling.top_p = static_cast<float>(random() % 100) / 100;
    if (random() % 3 == 0) sampling.min_p = static_cast<float>(random() % 30) / 100;
    std::vector<TokenId> generated;
    if (random() % 2 == 0) {
      sampling.repetition_penalty = 0.5F + static_cast<float>(random() % 20) / 10;
      sampling.presence_penalty = static_cast<float>(random() % 5) - 2;
      sampling.frequency_penalty = static_cast<float>(random() % 5) / 4;
      sampling.biases = {{static_cast<TokenId>(random() % 25), 4},
                         {static_cast<TokenId>(25 + random() % 25), -kInfiniteLogit}};
      for (int i = 0; i < 10; ++i) request.prompt.push_back(static_cast<TokenId>(random() % 50));
      for (int i = 0; i < 10; ++i) generated.push_back(static_cast<TokenId>(random() % 20));
    }
    expect_like_reference(logits, request, generated);
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST(Sampler, handles_large_vocabularies_and_flat_distributions) {
  GenerationRequest request;
  for (const float spread : {0.01F, 1.0F, 4.0F}) {
    const auto logits = random_logits(131072, 5, spread);
    for (const auto& [k, p] : {std::pair{0, 1.0F}, {0, 0.9F}, {50, 0.9F}, {5000, 1.0F}, {0, 0.999F}}) {
      request.sampling = {.temperature = 0.8F, .top_k = k, .top_p = p};
      expect_like_reference(logits, request, {});
    }
  }
}

TEST(Sampler, without_temperature_selects_the_best_token_and_the_lowest_of_equal_ones) {
  std::vector<float> logits = random_logits(1000, 1);
  logits[700] = logits[300] = 50;
  GenerationRequest request;
  Sampler sampler(1000);
  EXPECT_EQ(sampler.sample(logits, {&request, {}, 0}).token, 300);
  logits.assign(1000, -kInfiniteLogit);
  logits[999] = -1e30F;
  EXPECT_EQ(sampler.sample(logits, {&request, {}, 0}).token, 999);
  logits.assign(1000, -0.0F);
  logits[500] = 0.0F;
  EXPECT_EQ(sampler.sample(logits, {&request, {}, 0}).token, 0);
}

TEST(Sampler, keeps_all_equal_tokens_at_a_threshold) {
  const std::vector<float> logits = {1, 3, 2, 2, 2, 0};
  GenerationRequest request;
  Sampler sampler(6);
  const auto tokens = [&](const SamplingOptions& sampling) {
    request.sampling = sampling;
    std::vector<TokenId> kept;
    const auto distribution = sampler.distribution(logits, {&request, {}, 0}).value();
    for (const auto& [token, probability] : distribution) kept.push_back(token);
    return kept;
  };
  EXPECT_THAT(tokens({.temperature = 1, .top_k = 2}), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(tokens({.temperature = 1, .top_p = 0.5F}), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(tokens({.temperature = 1, .top_p = 0}), ElementsAre(1));
  EXPECT_THAT(tokens({.temperature = 1, .min_p = 1}), ElementsAre(1));
  EXPECT_THAT(tokens({.temperature = 1, .top_k = 6}), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(tokens({.temperature = 1, .top_k = 100}), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Sampler, logits_that_are_not_numbers_are_an_error) {
  Sampler sampler(200);
  GenerationRequest request;
  for (const float temperature : {0.0F, 1.0F}) {
    request.sampling.temperature = temperature;
    for (const float bad : {std::nanf(""), -std::nanf(""), kInfiniteLogit}) {
      auto logits = random_logits(200, 2);
      logits[130] = bad;
      const SampledToken sampled = sampler.sample(logits, {&request, {}, 0});
      EXPECT_EQ(sampled.status.code(), StatusCode::kCorrupt);
      EXPECT_THAT(sampled.status.message(), HasSubstr("token 130"));
    }
    const std::vector<float> none(200, -kInfiniteLogit);
    EXPECT_THAT(sampler.sample(none, {&request, {}, 0}).status.message(), HasSubstr("no token is allowed"));
  }
}

class Only final : public TokenMask {
 public:
  explicit Only(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}
  Status restrict(int sample, std::span<const TokenId> generated, std::span<std::uint64_t> allowed) const override {
    EXPECT_GE(sample, 0);
    if (generated.size() > 3) return Status(StatusCode::kAborted, "the grammar has ended");
    std::ranges::fill(allowed, 0);
    for (const TokenId token : tokens_)
      allowed[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
    return Status();
  }

 private:
  std::vector<TokenId> tokens_;
};

TEST(Sampler, a_mask_restricts_the_tokens) {
  const auto logits = random_logits(200, 3);
  Sampler sampler(200);
  GenerationRequest request;
  request.sampling.mask = std::make_shared<Only>(std::vector<TokenId>{64, 130, 199});
  std::set<TokenId> tokens;
  for (const float temperature : {0.0F, 5.0F}) {
    request.sampling.temperature = temperature;
    for (int sample = 0; sample < 50; ++sample) tokens.insert(sampler.sample(logits, {&request, {}, sample}).token);
  }
  EXPECT_THAT(tokens, ElementsAre(64, 130, 199));
  const std::vector<TokenId> generated(4, 64);
  EXPECT_EQ(sampler.sample(logits, {&request, generated, 0}).status.code(), StatusCode::kAborted);
  request.sampling.mask = std::make_shared<Only>(std::vector<TokenId>{});
  EXPECT_EQ(sampler.sample(logits, {&request, {}, 0}).status.code(), StatusCode::kInvalidArgument);
}

TEST(Sampler, tokens_occur_with_their_probability) {
  const auto logits = random_logits(64, 4, 1.5F);
  for (const int k : {0, 10}) {
    GenerationRequest request;
    request.sampling = {.temperature = 1, .top_k = k, .seed = 9};
    const auto expected = reference(logits, request, {});
    constexpr int kDraws = 40000;
    std::map<TokenId, int> counts;
    Sampler sampler(64);
    for (int sample = 0; sample < kDraws; ++sample) ++counts[sampler.sample(logits, {&request, {}, sample}).token];
    double chi_square = 0;
    for (const auto& [token, probability] : expected)
      chi_square += std::pow(counts[token] - probability * kDraws, 2) / (probability * kDraws);
    const auto freedom = static_cast<double>(expected.size() - 1);
    EXPECT_LT(chi_square, freedom + 4 * std::sqrt(2 * freedom));
    EXPECT_EQ(counts.size(), expected.size());
  }
}

TEST(Sampler, the_token_depends_only_on_seed_sample_and_position) {
  const auto logits = random_logits(5000, 6, 1);
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.sampling = {.temperature = 1, .seed = 42};
  Sampler sampler(5000);
  const std::vector<TokenId> generated = {7, 8};
  const TokenId token = sampler.sample(logits, {&request, generated, 1}).token;
  (void)sampler.sample(random_logits(5000, 7), {&request, {}, 5});
  EXPECT_EQ(Sampler(5000).sample(logits, {&request, generated, 1}).token, token);
  EXPECT_EQ(sampler.sample(logits, {&request, generated, 1}).token, token);
  EXPECT_NE(sampler.sample(logits, {&request, generated, 2}).token, token);
  GenerationRequest longer = request;  // the same sequence, divided differently
  longer.prompt = {1, 2, 3, 7};
  EXPECT_EQ(sampler.sample(logits, {&longer, std::span(generated).last(1), 1}).token, token);
  EXPECT_NE(sampler.sample(logits, {&request, std::span(generated).first(1), 1}).token, token);
  request.sampling.seed = 43;
  EXPECT_NE(sampler.sample(logits, {&request, generated, 1}).token, token);
}

TEST(Sampler, tokens_of_a_seed_never_change) {  // from a first run; these tokens must stay the same
  GenerationRequest request;
  request.sampling = {.temperature = 0.9F, .top_k = 40, .top_p = 0.95F, .seed = 1234};
  Sampler sampler(1000);
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 1000) / 100;
  std::vector<TokenId> tokens;
  for (int sample = 0; sample < 8; ++sample) tokens.push_back(sampler.sample(logits, {&request, {}, sample}).token);
  EXPECT_THAT(tokens, ElementsAre(889, 272, 494, 667, 568, 284, 988, 99));
}

TEST(Sampler, probabilities_match_those_of_the_model) {
  const auto logits = random_logits(3000, 8);
  GenerationRequest request;
  request.logprobs = 5;
  request.sampling = {.temperature = 0.5F, .top_k = 3, .biases = {{17, 30}}};
  const SampledToken sampled = Sampler(3000).sample(logits, {&request, {}, 0});
  EXPECT_EQ(sampled.token, 17);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(sampled.logprob, logits[17] - std::log(sum), 1e-5);
  std::vector<TokenId> order(3000);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, std::greater<>(), [&](TokenId token) { return logits[static_cast<std::size_t>(token)]; });
  ASSERT_EQ(sampled.top.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(sampled.top[i].token, order[i]);
    EXPECT_NEAR(sampled.top[i].logprob, logits[static_cast<std::size_t>(order[i])] - std::log(sum), 1e-5);
  }
  request.logprobs = 0;
  EXPECT_TRUE(Sampler(3000).sample(logits, {&request, {}, 0}).top.empty());
}

}  // namespace
}  // namespace accord::engine
