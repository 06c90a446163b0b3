#pragma once
// Converts text to token ids and back according to a model's tokenizer.json. docs/tokenizer.md lists what is
// supported.

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

/// Input of an encoder model: three lists of the same length.
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<TokenId> type_ids;              ///< 0 for the first text and its frame, 1 for those of the second
  std::vector<std::uint32_t> attention_mask;  ///< 0 for padding tokens
};

/// Whether decoded text contains special tokens.
enum class ShowSpecial : std::uint8_t { kSkip, kShow };

/// Decodes tokens as they arrive, and returns text as soon as its characters are complete.
///
/// The joined results of push() and finish() equal Tokenizer::decode() of all ids, for every text that is valid
/// UTF-8. Where tokens do not form whole characters, U+FFFD may be in other places. Used by one thread at a time;
/// movable.
class StreamingDecoder {
 public:
  /// Returns the text that `id` completes; often empty. Cost: decoding the last few tokens.
  [[nodiscard]] Result<std::string> push(TokenId id);
  /// Returns the remaining text, with U+FFFD for incomplete characters. The next push() begins a new text.
  [[nodiscard]] Result<std::string> finish();

 private:
  friend class Tokenizer;
  StreamingDecoder(std::shared_ptr<const tokenizer::Pipeline> pipeline, ShowSpecial special)
      : pipeline_(std::move(pipeline)), special_(special) {}
  Result<std::string> new_text() const;

  std::shared_ptr<const tokenizer::Pipeline> pipeline_;
  ShowSpecial special_;
  std::vector<TokenId> window_;  // tokens of the last text that was returned, then tokens not yet returned
  std::size_t returned_ = 0;     // how many of them are of the former kind
  std::string returned_text_;    // the text of those by themselves
};

/// A tokenizer of Hugging Face's `tokenizers`, read from its file: it gives the same ids and the same text.
///
/// Immutable: any number of threads may use it at once; copies share everything. Text is UTF-8; each malformed part
/// of it counts as one U+FFFD, as in Rust's from_utf8_lossy.
class Tokenizer {
 public:
  /// Reads `path`, a tokenizer.json. Errors name the file and the key: kNotFound, kIo, kCorrupt (damaged or
  /// meaningless), or kUnsupported (names a component that accord does not have; nothing is ever left out silently).
  [[nodiscard]] static Result<Tokenizer> load(const std::string& path);
  /// Reads the text of a tokenizer.json; `name` stands for the file in errors.
  [[nodiscard]] static Result<Tokenizer> parse(std::string_view json, std::string_view name = "tokenizer.json");

  /// Returns the ids of `text`. Fails with kInvalidArgument if it has a character that is not in the vocabulary and
  /// there is no token for unknown ones, or with kResourceExhausted if a regex of the file takes too many steps on
  /// it.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Returns the complete input of an encoder model, for a text or a pair of texts.
  [[nodiscard]] Result<Encoding> encode_with_mask(std::string_view text, const EncodeOptions& options = {}) const;
  [[nodiscard]] Result<Encoding> encode_pair(std::string_view first, std::string_view second,
                                             const EncodeOptions& options = {}) const;

  /// Returns the text of `ids`. Ids that are not tokens are skipped, as `tokenizers` does. Bytes that are not UTF-8
  /// become U+FFFD.
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids,
                                           ShowSpecial special = ShowSpecial::kSkip) const;
  /// Returns the bytes that `id` adds to a text in which other tokens precede and follow it: not always whole
  /// characters. nullopt for special tokens, and for ids that are not tokens. The decoder of WordPiece models may
  /// change them further (`cleanup`).
  [[nodiscard]] Result<std::optional<std::string>> bytes_of(TokenId id) const;
  [[nodiscard]] StreamingDecoder streaming_decoder(ShowSpecial special = ShowSpecial::kSkip) const;

  /// The number of tokens, including added ones. Ids may have gaps: a model's embedding may be larger.
  [[nodiscard]] std::size_t vocabulary_size() const;
  /// Returns the id of a token as written in the file ("<|im_end|>", "Ġhello").
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;
  [[nodiscard]] std::optional<std::string> token_of(TokenId id) const;

 private:
  explicit Tokenizer(std::shared_ptr<const tokenizer::Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}
  std::shared_ptr<const tokenizer::Pipeline> pipeline_;
};

}  // namespace accord
