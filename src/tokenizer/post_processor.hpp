#pragma once
// Frames of special tokens around a text or a pair of texts, truncation to the model's length, and padding.

#include <optional>
#include <vector>

#include "accord/tokenizer.hpp"
#include "base/json_node.hpp"

namespace accord::tokenizer {

/// A piece of a frame: one of the texts, or special tokens.
struct FramePiece {
  enum class Kind : std::uint8_t { kFirst, kSecond, kSpecial };
  Kind kind = Kind::kFirst;
  TokenId type_id = 0;
  std::vector<TokenId> ids;  ///< the special tokens
};
using Frame = std::vector<FramePiece>;

/// The file's "post_processor": the frames of a single text and of a pair.
struct Frames {
  Frame single = {{}};
  Frame pair = {{}, {FramePiece::Kind::kSecond, 1, {}}};
};
Result<Frames> read_frames(const JsonNode& node);

/// Number of special tokens in a frame.
std::size_t count_special(const Frame& frame);

enum class Side : std::uint8_t { kLeft, kRight };

/// The file's "truncation". The frame's tokens count toward the length.
struct Truncation {
  enum class Strategy : std::uint8_t { kLongestFirst, kOnlyFirst, kOnlySecond };
  std::size_t max_length = 0;
  Strategy strategy = Strategy::kLongestFirst;
  Side side = Side::kRight;
};
Result<std::optional<Truncation>> read_truncation(const JsonNode& node, const Frames& frames);

/// Truncates the texts (`second` may be null) so that they fit together with `added` special tokens.
Status truncate(const Truncation& truncation, std::size_t added, std::vector<TokenId>& first,
                std::vector<TokenId>* second);

/// The file's "padding".
struct Padding {
  std::size_t length = 0;  ///< 0: only as long as the text
  std::size_t multiple = 1;
  Side side = Side::kRight;
  TokenId id = 0;
  TokenId type_id = 0;
};
Result<std::optional<Padding>> read_padding(const JsonNode& node);
void pad(const Padding& padding, Encoding& encoding);

}  // namespace accord::tokenizer
