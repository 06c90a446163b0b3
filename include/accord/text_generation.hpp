#pragma once
// Texts continued by a language model: what is asked for in words, and the text that comes of it.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accord/chat_format.hpp"
#include "accord/generation.hpp"

namespace accord {

/// A text to be continued, or a conversation to be answered.
struct TextRequest {
  std::string prompt = {};                 ///< framed by special tokens as the tokenizer says
  std::vector<ChatMessage> messages = {};  ///< instead of a prompt: written as the package's chat format says
  std::vector<std::string> stop = {};      ///< texts that end an answer, of which they are no part
  GenerationRequest options = {};  ///< its prompt and logprobs stay empty; the package's stop tokens end an answer, too
};

/// More text of a sample, or its end, or both. After the event with a reason nothing more comes of the sample.
struct TextEvent {
  int sample = 0;
  std::string text;  ///< whole characters, without special tokens and what stopped the sample
  std::optional<FinishReason> finish;
  Status status;  ///< why, after an error or the end of everything
};

struct TextUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;  ///< of all samples so far, those that give no text included
};

/// The text of one request as it comes. One thread at a time; its end cancels what has not ended. Until it
/// has given its last event it keeps its model, also when no handle of that is left.
class TextStream {
 public:
  RequestId id() const;
  /// Waits for more text; nullopt once all samples have ended; kTimeout after `timeout`, and it may be called again. What may be
  /// the beginning of a text that stops is held back until it is none.
  [[nodiscard]] Result<std::optional<TextEvent>> next(std::chrono::milliseconds timeout);
  /// Ends the request soon: text that is there, or comes until then, is given first.
  void cancel();
  TextUsage usage() const;

 private:
  friend class LanguageModel;
  struct State;
  explicit TextStream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace accord
