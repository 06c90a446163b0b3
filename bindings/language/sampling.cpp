// A pure function of numbers: logits and tokens are lists, options are keywords.
#include "bindings/language/sampling.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "accord/generation.hpp"
#include "bindings/interpreter/status.hpp"
#include "engine/serving/check_request.hpp"
#include "engine/serving/sampler.hpp"

namespace accord::python {
namespace {

std::pair<TokenId, std::map<TokenId, double>> sample(const std::vector<float>& logits, std::vector<TokenId> prompt,
                                                     const std::vector<TokenId>& generated, int index,
                                                     SamplingOptions sampling, const std::map<TokenId, float>& biases) {
  for (const auto& [token, bias] : biases) sampling.biases.push_back({token, bias});
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling = std::move(sampling);
  const auto vocabulary = static_cast<std::int32_t>(logits.size());
  const auto context = static_cast<std::int32_t>(request.prompt.size() + 1);
  raise_if_error(engine::check_request(
      request, 0, {.blocks = context, .block_tokens = 1, .max_context = context, .vocabulary = vocabulary}));
  engine::Sampler sampler(vocabulary);
  const engine::DrawInput input = {&request, generated, index};
  const engine::SampledToken sampled = sampler.sample(logits, input);
  raise_if_error(sampled.status);
  const auto kept = value_or_raise(sampler.distribution(logits, input));
  return {sampled.token, {kept.begin(), kept.end()}};
}

}  // namespace

void bind_sampling(nb::module_& module) {
  module.def(
      "_sample",
      [](const std::vector<float>& logits, std::vector<TokenId> prompt, const std::vector<TokenId>& generated,
         int index, float temperature, int top_k, float top_p, float min_p, float repetition_penalty,
         float presence_penalty, float frequency_penalty, const std::map<TokenId, float>& biases, std::uint64_t seed) {
        return sample(logits, std::move(prompt), generated, index,
                      {.temperature = temperature,
                       .top_k = top_k,
                       .top_p = top_p,
                       .min_p = min_p,
                       .repetition_penalty = repetition_penalty,
                       .presence_penalty = presence_penalty,
                       .frequency_penalty = frequency_penalty,
                       .seed = seed},
                      biases);
      },
      nb::arg("logits"), nb::arg("prompt"), nb::arg("generated"), nb::arg("index") = 0, nb::kw_only(),
      nb::arg("temperature") = 0.0F, nb::arg("top_k") = 0, nb::arg("top_p") = 1.0F, nb::arg("min_p") = 0.0F,
      nb::arg("repetition_penalty") = 1.0F, nb::arg("presence_penalty") = 0.0F, nb::arg("frequency_penalty") = 0.0F,
      nb::arg("biases") = std::map<TokenId, float>{}, nb::arg("seed") = 0,
      "Returns the token that sample `index` of a request gets after `generated`, and the probabilities from which it "
      "was drawn.");
}

}  // namespace accord::python
