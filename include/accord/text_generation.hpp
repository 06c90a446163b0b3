#pragma once
// Text generation with a language model: requests in text, and the text that is generated.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accord/chat_format.hpp"
#include "accord/generation.hpp"

namespace accord {

/// A text to continue, or a conversation to answer.
struct TextRequest {
  std::string prompt = {};                 ///< framed by special tokens according to the tokenizer
  std::vector<ChatMessage> messages = {};  ///< instead of a prompt; rendered by the package's chat format
  std::vector<std::string> stop = {};      ///< texts that end an answer and are not part of it
  /// Without logprobs, and without a prompt unless the model has an encoder (LanguageModel::generate()). The package's
  /// stop tokens also end an answer.
  GenerationRequest options = {};
};

/// More text of a sample, or its end, or both. An event with a finish reason is the sample's last one.
struct TextEvent {
  int sample = 0;
  std::string text;  ///< whole characters, without special tokens and without what stopped the sample
  std::optional<FinishReason> finish;
  Status status;  ///< the reason, after an error or if everything has ended
};

struct TextUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;  ///< of all samples so far, including tokens that produce no text
};

/// The text of one request as it arrives. Used by one thread at a time; its destruction cancels the request if it has
/// not ended. Until it has returned its last event, it keeps its model alive, even if no handle of the model is left.
class TextStream {
 public:
  RequestId id() const;
  /// Waits for more text. Returns nullopt once all samples have ended, and kTimeout after `timeout`; it may then be
  /// called again. Text that may be the beginning of a stop text is held back until that is decided.
  [[nodiscard]] Result<std::optional<TextEvent>> next(std::chrono::milliseconds timeout);
  /// Ends the request soon. Text that is available, or arrives until then, is returned first.
  void cancel();
  TextUsage usage() const;

 private:
  friend class LanguageModel;
  struct State;
  explicit TextStream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace accord
