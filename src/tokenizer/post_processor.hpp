#pragma once
// What frames the tokens of a text, or of a pair of texts, for the model; how long it may be; what pads it.

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
  std::vector<TokenId> ids;  ///< of special tokens
};
using Frame = std::vector<FramePiece>;

/// The file's "post_processor": what a text alone and a pair of texts become.
struct Frames {
  Frame single = {{}};
  Frame pair = {{}, {FramePiece::Kind::kSecond, 1, {}}};
};
Result<Frames> read_frames(const JsonNode& node);

/// How many special tokens a frame has.
std::size_t count_special(const Frame& frame);

enum class Side : std::uint8_t { kLeft, kRight };

/// The file's "truncation". The frame counts as well.
struct Truncation {
  enum class Strategy : std::uint8_t { kLongestFirst, kOnlyFirst, kOnlySecond };
  std::size_t max_length = 0;
  Strategy strategy = Strategy::kLongestFirst;
  Side side = Side::kRight;
};
Result<std::optional<Truncation>> read_truncation(const JsonNode& node, const Frames& frames);

/// Cuts the texts (`second` may be null) so that with `added` special tokens they are short enough.
Status truncate(const Truncation& truncation, std::size_t added, std::vector<TokenId>& first,
                std::vector<TokenId>* second);

/// The file's "padding".
struct Padding {
  std::size_t length = 0;  ///< 0: no longer than the text
  std::size_t multiple = 1;
  Side side = Side::kRight;
  TokenId id = 0;
  TokenId type_id = 0;
};
Result<std::optional<Padding>> read_padding(const JsonNode& node);
void pad(const Padding& padding, Encoding& encoding);

}  // namespace accord::tokenizer
