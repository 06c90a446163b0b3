#pragma once
// The text that a chat model is given for a conversation. docs/tokenizer.md tells how a model's template becomes a chat_format.json.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", or what else the format knows
  std::string content;
};

/// Whether the text ends with what begins an answer.
enum class AddGenerationPrompt : std::uint8_t { kNo, kYes };

/// A chat template in the form of a table: the text before a first message, between two, and after the last one, by their roles.
///
/// Immutable: any number of threads may call it at once; copies share everything.
class ChatFormat {
 public:
  /// Reads a chat_format.json. kNotFound, kIo, kCorrupt (names the file and the key), kUnsupported with the reason that the file gives
  /// if the model's template is not of this form.
  [[nodiscard]] static Result<ChatFormat> load(const std::string& path);
  [[nodiscard]] static Result<ChatFormat> parse(std::string_view json, std::string_view name = "chat_format.json");

  /// The text of a conversation, special tokens included: encode it with SpecialTokens::kLeaveOut. Dates in it are today's.
  /// kInvalidArgument if there are no messages, or the format has no such role or no such order of roles.
  [[nodiscard]] Result<std::string> render(std::span<const ChatMessage> messages,
                                           AddGenerationPrompt prompt = AddGenerationPrompt::kYes) const;

 private:
  struct Table;
  explicit ChatFormat(std::shared_ptr<const Table> table) : table_(std::move(table)) {}
  std::shared_ptr<const Table> table_;
};

}  // namespace accord
