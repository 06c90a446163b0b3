#pragma once
// Text to token ids and back, as the tokenizer.json of a model says. docs/tokenizer.md lists what is read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "accord/token.hpp"

namespace accord {

namespace tokenizer {
class Pipeline;
}

/// Tokens that frame a text for the model (beginning of text, separators).
enum class SpecialTokens : std::uint8_t { kAdd, kLeaveOut };

/// The length that the file prescribes (its `truncation` and `padding`), or that of the text.
enum class TextLength : std::uint8_t { kAsPrescribed, kWhole };

struct EncodeOptions {
  SpecialTokens special_tokens = SpecialTokens::kAdd;
  TextLength length = TextLength::kAsPrescribed;
};

/// What an encoder model takes: three lists of one length.
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<TokenId> type_ids;              ///< 0 for the first text and its frame, 1 for the second one's
  std::vector<std::uint32_t> attention_mask;  ///< 0 where a token only pads
};

/// Special tokens in decoded text.
enum class ShowSpecial : std::uint8_t { kSkip, kShow };

/// Tokens to text while they come: gives text as soon as its characters are whole.
///
/// What push() and finish() give, joined, is what Tokenizer::decode() gives for all ids, for every text that is whole UTF-8. Where
/// tokens do not make up whole characters, U+FFFD may stand in other places. Used by one thread at a time; movable.
class StreamingDecoder {
 public:
  /// The text that `id` completes; often empty. Cost: decoding the last few tokens.
  [[nodiscard]] Result<std::string> push(TokenId id);
  /// What is left: characters that are not whole become U+FFFD. The next push() begins a new text.
  [[nodiscard]] Result<std::string> finish();

 private:
  friend class Tokenizer;
  StreamingDecoder(std::shared_ptr<const tokenizer::Pipeline> pipeline, ShowSpecial special)
      : pipeline_(std::move(pipeline)), special_(special) {}
  Result<std::string> new_text() const;

  std::shared_ptr<const tokenizer::Pipeline> pipeline_;
  ShowSpecial special_;
  std::vector<TokenId> window_;  // the tokens of the last text that was given, then those of none yet
  std::size_t given_ = 0;        // how many of them are of the former kind
  std::string given_text_;       // what these are by themselves
};

/// A tokenizer of Hugging Face's `tokenizers`, read from its file: the same ids, the same text.
///
/// Immutable: any number of threads may call it at once; copies share everything. Text is UTF-8; each malformed part of it counts as
/// one U+FFFD, as in Rust's from_utf8_lossy.
class Tokenizer {
 public:
  /// Reads `path`, a tokenizer.json. Errors name the file and the key: kNotFound, kIo, kCorrupt (damaged, or without meaning),
  /// kUnsupported (a component that accord does not have, by its name; nothing is ever left out silently).
  [[nodiscard]] static Result<Tokenizer> load(const std::string& path);
  /// Reads the text of a tokenizer.json; `name` stands for the file in errors.
  [[nodiscard]] static Result<Tokenizer> parse(std::string_view json, std::string_view name = "tokenizer.json");

  /// The ids of `text`. kInvalidArgument if it has a character that the vocabulary lacks and no token for unknown ones exists;
  /// kResourceExhausted if a regex of the file takes too many steps on it.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// All that an encoder model takes, for a text or a pair of texts.
  [[nodiscard]] Result<Encoding> encode_with_mask(std::string_view text, const EncodeOptions& options = {}) const;
  [[nodiscard]] Result<Encoding> encode_pair(std::string_view first, std::string_view second,
                                             const EncodeOptions& options = {}) const;

  /// The text of `ids`; those of no token are passed over, as `tokenizers` does. Bytes that are no UTF-8 become U+FFFD.
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids,
                                           ShowSpecial special = ShowSpecial::kSkip) const;
  [[nodiscard]] StreamingDecoder streaming_decoder(ShowSpecial special = ShowSpecial::kSkip) const;

  /// How many tokens there are, added ones included. Ids may have gaps: a model's embedding may be larger.
  [[nodiscard]] std::size_t vocabulary_size() const;
  /// The id of a token as the file writes it ("<|im_end|>", "Ġhello").
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;
  [[nodiscard]] std::optional<std::string> token_of(TokenId id) const;

 private:
  explicit Tokenizer(std::shared_ptr<const tokenizer::Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}
  std::shared_ptr<const tokenizer::Pipeline> pipeline_;
};

}  // namespace accord
