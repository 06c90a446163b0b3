#pragma once
// The state of a TextStream.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accord/language_model.hpp"
#include "accord/tokenizer.hpp"
#include "engine/serving/stop_texts.hpp"

namespace accord {

/// Turns the events of a request into text, with a decoder and a search for stop texts for each sample.
struct TextStream::State {
  State(GenerationStream tokens, const Tokenizer& tokenizer, const std::vector<std::string>& stop,
        std::size_t prompt_tokens, int samples);

  Result<std::optional<TextEvent>> next(std::chrono::milliseconds timeout);

  RequestId id;
  GenerationStream tokens;
  TextUsage usage;

 private:
  struct Sample {
    StreamingDecoder decoder;
    engine::StopTexts stops;
    bool ended = false;
  };
  Result<TextEvent> text_of(const GenerationEvent& event);

  std::vector<Sample> samples_;
  int running_;
};

}  // namespace accord
