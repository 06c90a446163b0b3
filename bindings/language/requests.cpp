#include "bindings/language/requests.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <string>
#include <typeinfo>
#include <utility>

#include "base/text.hpp"
#include "bindings/arguments/integers.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/language/source.hpp"
#include "bindings/language/text_stream.hpp"
#include "bindings/language/token_mask.hpp"

namespace accord::python {
namespace {

struct Option {
  const char* expected;
  void (*set)(GenerationRequest& request, nb::handle value);
};

const std::map<std::string, Option>& options_by_name() {
  constexpr const char* kNumber = "a number";
  constexpr const char* kWhole = "a 32-bit integer";
  constexpr const char* kTokens = "a list of token ids";
  static const std::map<std::string, Option> table = {
      {"temperature",
       {kNumber, [](GenerationRequest& r, nb::handle v) { r.sampling.temperature = nb::cast<float>(v); }}},
      {"top_k", {kWhole, [](GenerationRequest& r, nb::handle v) { r.sampling.top_k = nb::cast<int>(v); }}},
      {"top_p", {kNumber, [](GenerationRequest& r, nb::handle v) { r.sampling.top_p = nb::cast<float>(v); }}},
      {"min_p", {kNumber, [](GenerationRequest& r, nb::handle v) { r.sampling.min_p = nb::cast<float>(v); }}},
      {"repetition_penalty",
       {kNumber, [](GenerationRequest& r, nb::handle v) { r.sampling.repetition_penalty = nb::cast<float>(v); }}},
      {"presence_penalty",
       {kNumber, [](GenerationRequest& r, nb::handle v) { r.sampling.presence_penalty = nb::cast<float>(v); }}},
      {"frequency_penalty",
       {kNumber, [](GenerationRequest& r, nb::handle v) { r.sampling.frequency_penalty = nb::cast<float>(v); }}},
      {"biases",
       {"a dict of token ids and numbers",
        [](GenerationRequest& r, nb::handle v) {
          for (const auto& [token, bias] : nb::cast<std::map<TokenId, float>>(v)) {
            r.sampling.biases.push_back({token, bias});
          }
        }}},
      {"seed",
       {"an unsigned 64-bit integer",
        [](GenerationRequest& r, nb::handle v) { r.sampling.seed = nb::cast<std::uint64_t>(v); }}},
      {"max_new_tokens",
       {kWhole, [](GenerationRequest& r, nb::handle v) { r.max_new_tokens = nb::cast<std::optional<int>>(v); }}},
      {"stop_tokens",
       {kTokens, [](GenerationRequest& r, nb::handle v) { r.stop_tokens = nb::cast<std::vector<TokenId>>(v); }}},
      {"stop_sequences",
       {"a list of lists of token ids",
        [](GenerationRequest& r, nb::handle v) { r.stop_sequences = nb::cast<std::vector<std::vector<TokenId>>>(v); }}},
      {"priority", {kWhole, [](GenerationRequest& r, nb::handle v) { r.priority = nb::cast<int>(v); }}},
      {"samples", {kWhole, [](GenerationRequest& r, nb::handle v) { r.samples = nb::cast<int>(v); }}},
      {"first_sample", {kWhole, [](GenerationRequest& r, nb::handle v) { r.first_sample = nb::cast<int>(v); }}},
      {"generated", {kWhole, [](GenerationRequest& r, nb::handle v) { r.generated = nb::cast<int>(v); }}},
      {"mask",
       {"a callable or None", [](GenerationRequest& r, nb::handle v) { r.sampling.mask = token_mask_argument(v); }}},
      {"adapter",
       {"a text or None",
        [](GenerationRequest& r, nb::handle v) { r.adapter = nb::cast<std::optional<std::string>>(v).value_or(""); }}},
      {"source",
       {"token ids, or arrays",
        [](GenerationRequest& r, nb::handle v) {
          if (!v.is_none()) r.source = source_argument(v);
        }}},
      {"start_tokens",
       {kTokens, [](GenerationRequest& r, nb::handle v) { r.prompt = nb::cast<std::vector<TokenId>>(v); }}},
      {"logprobs", {kWhole, [](GenerationRequest& r, nb::handle v) { r.logprobs = nb::cast<std::optional<int>>(v); }}},
  };
  return table;
}

void bind_generation_event(nb::module_& module) {
  nb::class_<GenerationEvent>(module, "GenerationEvent", "One more token of a sample, or its end, or both.")
      .def_ro("request", &GenerationEvent::request)
      .def_ro("sample", &GenerationEvent::sample, "Index of the sample among those of the request.")
      .def_ro("index", &GenerationEvent::index, "Index of the token among those generated.")
      .def_ro("token", &GenerationEvent::token, "The token; None for an end without a token.")
      .def_ro("logprob", &GenerationEvent::logprob,
              "If requested: the token's log probability by the model, before any option.")
      .def_prop_ro(
          "top",
          [](const GenerationEvent& self) {
            std::vector<std::pair<TokenId, float>> top;
            for (const TokenLogprob& one : self.top) top.emplace_back(one.token, one.logprob);
            return top;
          },
          "If requested: the best tokens and their log probabilities, best first.")
      .def_prop_ro(
          "finish", [](const GenerationEvent& self) { return reason_of(self.finish); },
          R"("" until the sample ends; then "stop_token", "stop_sequence", "length", "cancelled" or "error".)")
      .def_prop_ro(
          "error", [](const GenerationEvent& self) { return exception_for(self.status); },
          "The reason, after an error or if everything has ended; else None.");
}

void bind_stats(nb::module_& module) {
  nb::class_<GenerationStats>(module, "GenerationStats", "What a language model has done, and what it has to do.")
      .def_ro("requests", &GenerationStats::requests, "Requests that have not ended.")
      .def_ro("waiting", &GenerationStats::waiting, "Sequences that wait for a place in a step or in the cache.")
      .def_ro("running", &GenerationStats::running, "Sequences that take part in steps.")
      .def_ro("blocks", &GenerationStats::blocks, "Blocks of the cache.")
      .def_ro("available_blocks", &GenerationStats::available_blocks, "Blocks that no sequence holds.")
      .def_ro("steps", &GenerationStats::steps, "Steps since the model was created.")
      .def_ro("computed_tokens", &GenerationStats::computed_tokens, "Tokens computed in these steps.")
      .def_ro("reused_tokens", &GenerationStats::reused_tokens, "Tokens of prompts that were found in the cache.")
      .def_ro("preemptions", &GenerationStats::preemptions, "How often a sequence lost its blocks to another one.");
}

}  // namespace

std::vector<TokenId> prompt_of(nb::handle prompt) {
  std::vector<std::int64_t> numbers;
  try {
    numbers = integers_of(prompt);
  } catch (const nb::python_error&) {
    const bool is_text = nb::isinstance<nb::str>(prompt);
    throw nb::type_error(("prompt: expected a list of token ids, got " + std::string(nb::repr(prompt).c_str()) +
                          (is_text ? "; generate() takes a text" : ""))
                             .c_str());
  }
  std::vector<TokenId> tokens;
  for (const std::int64_t number : numbers) {
    if (!std::in_range<TokenId>(number)) raise_invalid("prompt: " + std::to_string(number) + " is not a token id");
    tokens.push_back(static_cast<TokenId>(number));
  }
  return tokens;
}

GenerationRequest request_of(std::vector<TokenId> prompt, const nb::kwargs& options) {
  GenerationRequest request;
  for (const auto& [key, value] : options) {
    const std::string name = nb::cast<std::string>(key);
    const auto found = options_by_name().find(name);
    if (found == options_by_name().end()) {
      std::vector<std::string_view> names;
      for (const auto& option : options_by_name()) names.push_back(option.first);
      raise(unknown_name("option", name, names));
    }
    try {
      found->second.set(request, value);
    } catch (const std::bad_cast&) {
      throw nb::type_error(
          (name + ": expected " + found->second.expected + ", got " + nb::repr(value).c_str()).c_str());
    }
  }
  if (!prompt.empty()) request.prompt = std::move(prompt);
  return request;
}

void bind_requests(nb::module_& module) {
  bind_generation_event(module);
  bind_stats(module);
}

}  // namespace accord::python
