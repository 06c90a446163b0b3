#pragma once
// The text that a chat model is given for a conversation. docs/tokenizer.md describes how a model's template becomes
// a chat_format.json.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", or another role that the format knows
  std::string content;
};

/// Whether the text ends with the beginning of an answer.
enum class AddGenerationPrompt : std::uint8_t { kNo, kYes };

/// A chat template in table form: the text before the first message, between two messages, and after the last one, by
/// their roles.
///
/// Immutable: any number of threads may use it at once; copies share everything.
class ChatFormat {
 public:
  /// Reads a chat_format.json. Fails with kNotFound, kIo, kCorrupt (names the file and the key), or kUnsupported if
  /// the model's template does not have this form, with the reason that the file gives.
  [[nodiscard]] static Result<ChatFormat> load(const std::string& path);
  [[nodiscard]] static Result<ChatFormat> parse(std::string_view json, std::string_view name = "chat_format.json");

  /// Returns the text of a conversation, special tokens included; encode it with SpecialTokens::kLeaveOut. Dates in
  /// it are today's. Fails with kInvalidArgument if there are no messages, or if the format does not have such a role
  /// or such an order of roles.
  [[nodiscard]] Result<std::string> render(std::span<const ChatMessage> messages,
                                           AddGenerationPrompt prompt = AddGenerationPrompt::kYes) const;

 private:
  struct Table;
  explicit ChatFormat(std::shared_ptr<const Table> table) : table_(std::move(table)) {}
  std::shared_ptr<const Table> table_;
};

}  // namespace accord
