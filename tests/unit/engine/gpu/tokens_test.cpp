// Tokens that a device chooses, compared with those that the CPU's sampler gives for the same logits.
#include <cmath>
#include <limits>

#include "engine/gpu/kernels/token_kernel.hpp"
#include "engine/gpu/token_chooser.hpp"
#include "engine/serving/sampler.hpp"
#include "unit/engine/gpu/blocks.hpp"
#include "unit/engine/gpu/engines.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::DeviceEngines;
using accord::testing::HostRuntime;
using accord::testing::kGpu;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kVocabulary = 389;
// The larger one is read in words, and first: a chooser keeps the memory of its first choice.
constexpr std::size_t kVocabularies[] = {392, kVocabulary};

// Returns rows of logits that are nearly flat, steep, or full of equal values, since they are multiples of a half.
std::vector<float> rows_of_logits(std::size_t rows, std::size_t vocabulary = kVocabulary) {
  std::mt19937 random(7);
  std::vector<float> logits;
  for (std::size_t row = 0; row < rows; ++row) {
    std::normal_distribution<float> normal(0, row % 3 == 0 ? 0.2F : 4.0F);
    for (std::size_t i = 0; i < vocabulary; ++i) {
      const float logit = normal(random);
      logits.push_back(row % 3 == 1 ? std::nearbyint(logit) / 2 : logit);
    }
  }
  return logits;
}

std::vector<GenerationRequest> some_requests() {
  std::vector<GenerationRequest> requests;
  for (const float temperature : {0.0F, 0.05F, 1.0F, 3.0F}) {
    for (const int top_k : {0, 1, 20, 388, 1000}) {
      for (const float top_p : {1.0F, 0.9F, 0.3F, 0.0F}) {
        GenerationRequest request;
        request.prompt = {1, 2, 3};
        request.sampling.temperature = temperature;
        request.sampling.top_k = top_k;
        request.sampling.top_p = top_p;
        request.sampling.min_p = requests.size() % 3 == 2 ? 0.2F : 0.0F;
        request.sampling.seed = 0x123456789ABCDEFU * requests.size();
        requests.push_back(request);
      }
    }
  }
  return requests;
}

class TokensOnDevices : public DeviceEngines {
 protected:
  using DeviceEngines::DeviceEngines;
  void SetUp() override { stream_ = runtime().create_stream(kGpu, false).value(); }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_TRUE(runtime().synchronize(kGpu, stream_).ok());
    EXPECT_TRUE(runtime().destroy_stream(kGpu, stream_).ok());
  }

  // Returns the tokens that a TokenChooser gives for logits in a device's memory.
  std::vector<TokenId> choose(const accord::testing::DeviceArray& logits, std::span<const TokenChoice> choices,
                              std::size_t vocabulary = kVocabulary) {
    const DeviceRun run{{}, runtime(), blas(), kGpu, stream_, 3};
    std::vector<TokenId> tokens(choices.size(), 12345);
    const Status status = chooser_.choose(run, logits.buffer(), static_cast<std::int64_t>(vocabulary), choices, tokens);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return tokens;
  }

  accord::testing::OnDevice on() const { return {runtime(), kGpu, stream_}; }

  void expect_tokens_of_the_cpu(DType dtype, std::size_t vocabulary) {
    constexpr std::size_t kRows = 6;
    const std::vector<GenerationRequest> requests = some_requests();
    std::vector<std::byte> stored(kRows * vocabulary * size_of(dtype));
    std::vector<float> read = rows_of_logits(kRows, vocabulary);
    for (std::size_t i = 0; i < read.size(); ++i) {
      device::store_float(stored.data(), dtype, static_cast<std::int64_t>(i), read[i]);
      read[i] = device::load_float(stored.data(), dtype, static_cast<std::int64_t>(i));
    }
    const accord::testing::DeviceArray logits(on(), stored, dtype);
    Sampler sampler(static_cast<std::int32_t>(vocabulary));
    std::vector<TokenChoice> choices;
    std::vector<TokenId> expected;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (int sample = 0; sample < 2; ++sample) {
        const std::size_t row = (i + static_cast<std::size_t>(sample)) % kRows;
        const DrawInput input{&requests[i], {}, sample};
        choices.push_back(Sampler::choice(input, static_cast<std::int64_t>(row)).value());
        expected.push_back(sampler.sample(std::span(read).subspan(row * vocabulary, vocabulary), input).token);
      }
    }
    const std::size_t before = HostRuntime::instance().copied_to_host();
    const std::size_t pageable = HostRuntime::instance().copied_pageable();
    EXPECT_EQ(choose(logits, choices, vocabulary), expected) << to_string(dtype);
    if (counts()) {
      EXPECT_EQ(HostRuntime::instance().copied_to_host() - before, choices.size() * sizeof(TokenId));
      EXPECT_EQ(HostRuntime::instance().copied_pageable(), pageable);
    }
  }

  Stream stream_;
  TokenChooser chooser_;
};

class DeviceTokens : public accord::testing::OnAnyDevice<TokensOnDevices> {};

TEST_P(DeviceTokens, match_the_cpu_for_every_option_and_dtype) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const std::size_t vocabulary : kVocabularies) expect_tokens_of_the_cpu(dtype, vocabulary);
}

void expect_draws_of_the_cpu(std::size_t vocabulary) {
  const std::vector<float> logits = rows_of_logits(3, vocabulary);
  const std::vector<GenerationRequest> requests = some_requests();
  std::vector<TokenChoice> choices;
  std::vector<TokenId> expected;
  Sampler sampler(static_cast<std::int32_t>(vocabulary));
  for (std::size_t i = 20; i < requests.size(); i += 7) {
    const DrawInput input{&requests[i], {}, 0};
    choices.push_back(Sampler::choice(input, static_cast<std::int64_t>(i % 3)).value());
    expected.push_back(sampler.sample(std::span(logits).subspan(i % 3 * vocabulary, vocabulary), input).token);
  }
  for (const BlockSize size : {BlockSize{1, 1}, BlockSize{6, 3}, BlockSize{8, 8}, BlockSize{12, 4}}) {
    std::vector<TokenId> tokens(choices.size(), 12345);
    std::vector<Words> weights(2 * vocabulary / 4 + 1);
    ChooseTokens<DType::kFloat32> kernel;
    kernel.logits = logits.data();
    kernel.width = static_cast<std::int64_t>(vocabulary);
    kernel.count = static_cast<std::int64_t>(choices.size());
    kernel.choices = choices.data();
    kernel.weights = reinterpret_cast<std::uint32_t*>(weights.data());
    kernel.tokens = tokens.data();
    accord::testing::run_blocks(kernel, 2, size, kernel.shared_bytes());
    EXPECT_EQ(tokens, expected) << size.threads << " threads";
  }
}

TEST(ChosenTokens, blocks_of_any_number_of_threads_and_lanes_draw_the_same) {
  for (const std::size_t vocabulary : kVocabularies) expect_draws_of_the_cpu(vocabulary);
}

TEST_P(DeviceTokens, rows_with_nan_or_no_allowed_token_are_left_to_the_cpu) {
  std::vector<float> rows = rows_of_logits(6);
  const auto row = [&](std::size_t i) { return std::span(rows).subspan(i * kVocabulary, kVocabulary); };
  row(0)[200] = std::nanf("");
  row(1)[0] = -std::nanf("");
  row(2)[388] = kInfinity;
  std::ranges::fill(row(3), -kInfinity);
  std::ranges::fill(row(4), -kInfinity);  // all but the next one
  row(4)[77] = -3.0F;
  std::ranges::fill(row(5), -0.0F);  // counts as equal to the next one
  row(5)[300] = 0.0F;
  const accord::testing::DeviceArray logits(on(), rows, DType::kFloat32);
  for (const float temperature : {0.0F, 1.0F}) {
    GenerationRequest request;
    request.sampling.temperature = temperature;
    request.sampling.top_k = 3;
    std::vector<TokenChoice> choices;
    std::vector<TokenId> expected = {kNoToken, kNoToken, kNoToken, kNoToken};
    Sampler sampler(kVocabulary);
    for (std::size_t i = 0; i < 6; ++i) {
      const DrawInput input{&request, {}, 0};
      choices.push_back(Sampler::choice(input, static_cast<std::int64_t>(i)).value());
      const SampledToken sampled = sampler.sample(row(i), input);
      EXPECT_EQ(sampled.status.ok(), i >= 4);
      if (i >= 4) expected.push_back(sampled.token);
    }
    EXPECT_EQ(choose(logits, choices), expected);
  }
}

TEST(ChosenTokens, requests_that_change_or_return_logits_are_sampled_on_the_cpu) {
  const auto chosen = [](const GenerationRequest& request) {
    return Sampler::choice({&request, {}, 0}, 0).has_value();
  };
  GenerationRequest request;
  EXPECT_TRUE(chosen(request));
  request.sampling = {.temperature = 1, .top_k = 5, .top_p = 0.5F, .min_p = 0.1F};
  EXPECT_TRUE(chosen(request));
  request.logprobs = 0;
  EXPECT_FALSE(chosen(request));
  for (SamplingOptions sampling : {SamplingOptions{.repetition_penalty = 1.1F}, SamplingOptions{.presence_penalty = 1},
                                   SamplingOptions{.frequency_penalty = 1}, SamplingOptions{.biases = {{4, -1.0F}}}}) {
    request = {};
    request.sampling = sampling;
    EXPECT_FALSE(chosen(request));
  }
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceTokens, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceTokens, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
