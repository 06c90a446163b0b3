// All post-processors reduce to the same thing: a frame for a single text and one for a pair.

#include "tokenizer/post_processor.hpp"

#include <array>
#include <map>

#include "tokenizer/components.hpp"
#include "tokenizer/vocabulary.hpp"

namespace accord::tokenizer {
namespace {

using PieceKind = FramePiece::Kind;

// Reads ["[SEP]", 102].
Result<FramePiece> read_special_pair(const JsonNode& node) {
  ACCORD_ASSIGN_OR_RETURN(const auto items, node.items());
  if (items.size() != 2) return node.error("expected a token and its id");
  ACCORD_RETURN_IF_ERROR(items[0].text().status());
  ACCORD_ASSIGN_OR_RETURN(const TokenId id, read_token_id(items[1]));
  return FramePiece{PieceKind::kSpecial, 0, {id}};
}

FramePiece with_type(FramePiece piece, TokenId type_id) {
  piece.type_id = type_id;
  return piece;
}

Result<Frames> read_bert(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"sep", "cls"}));
  ACCORD_ASSIGN_OR_RETURN(const FramePiece sep, read_special_pair(node.at("sep")));
  ACCORD_ASSIGN_OR_RETURN(const FramePiece cls, read_special_pair(node.at("cls")));
  Frames frames;
  frames.single = {cls, {}, sep};
  frames.pair = {cls, {}, sep, {PieceKind::kSecond, 1, {}}, with_type(sep, 1)};
  return frames;
}

Result<Frames> read_roberta(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"sep", "cls", "trim_offsets", "add_prefix_space"}));
  ACCORD_ASSIGN_OR_RETURN(const FramePiece sep, read_special_pair(node.at("sep")));
  ACCORD_ASSIGN_OR_RETURN(const FramePiece cls, read_special_pair(node.at("cls")));
  Frames frames;
  frames.single = {cls, {}, sep};
  frames.pair = {cls, {}, sep, sep, {PieceKind::kSecond, 0, {}}, sep};
  return frames;
}

using SpecialIds = std::map<std::string, std::vector<TokenId>, std::less<>>;

Result<SpecialIds> read_special_tokens(const JsonNode& node) {
  if (!node.json().is_object()) return node.error("expected an object");
  SpecialIds special;
  for (const auto& [name, json] : node.json().items()) {
    const JsonNode item = node.at(name);
    ACCORD_RETURN_IF_ERROR(item.check_keys(std::array<std::string_view, 3>{"id", "ids", "tokens"}));
    ACCORD_ASSIGN_OR_RETURN(const auto ids, item.at("ids").items());
    for (const JsonNode& id : ids) {
      ACCORD_ASSIGN_OR_RETURN(const TokenId value, read_token_id(id));
      special[name].push_back(value);
    }
  }
  return special;
}

// Reads {"Sequence": {"id": "A", "type_id": 0}} or {"SpecialToken": {"id": "[CLS]", "type_id": 0}}.
Result<FramePiece> read_piece(const JsonNode& node, const SpecialIds& special) {
  const bool is_sequence = node.has("Sequence");
  ACCORD_ASSIGN_OR_RETURN(const JsonNode piece, node.required(is_sequence ? "Sequence" : "SpecialToken"));
  ACCORD_RETURN_IF_ERROR(piece.check_keys(std::array<std::string_view, 2>{"id", "type_id"}));
  FramePiece result;
  ACCORD_ASSIGN_OR_RETURN(const std::string id, piece.at("id").text());
  ACCORD_ASSIGN_OR_RETURN(result.type_id, read_token_id(piece.at("type_id")));
  if (is_sequence) {
    if (id != "A" && id != "B") return piece.at("id").error("expected \"A\" or \"B\"");
    result.kind = id == "A" ? PieceKind::kFirst : PieceKind::kSecond;
    return result;
  }
  const auto found = special.find(id);
  if (found == special.end()) return piece.at("id").error(fmt::format("special_tokens has no {}", quoted_text(id)));
  result.kind = PieceKind::kSpecial;
  result.ids = found->second;
  return result;
}

Result<Frame> read_frame(const JsonNode& node, const SpecialIds& special) {
  Frame frame;
  ACCORD_ASSIGN_OR_RETURN(const auto items, node.items());
  for (const JsonNode& item : items) {
    ACCORD_ASSIGN_OR_RETURN(FramePiece piece, read_piece(item, special));
    frame.push_back(std::move(piece));
  }
  return frame;
}

Result<Frames> read_template(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"single", "pair", "special_tokens"}));
  ACCORD_ASSIGN_OR_RETURN(const SpecialIds special, read_special_tokens(node.at("special_tokens")));
  Frames frames;
  ACCORD_ASSIGN_OR_RETURN(frames.single, read_frame(node.at("single"), special));
  ACCORD_ASSIGN_OR_RETURN(frames.pair, read_frame(node.at("pair"), special));
  if (std::ranges::any_of(frames.single, [](const FramePiece& piece) { return piece.kind == PieceKind::kSecond; })) {
    return node.at("single").error("the frame of a single text must not use the second text");
  }
  return frames;
}

// Returns no frames for ByteLevel, which affects only offsets.
Result<std::optional<Frames>> read_post_processor(const JsonNode& node) {
  constexpr std::array<std::string_view, 5> kTypes = {"BertProcessing", "RobertaProcessing", "ByteLevel",
                                                      "TemplateProcessing", "Sequence"};
  ACCORD_ASSIGN_OR_RETURN(const std::string type, component_type(node, "post_processor", kTypes));
  if (type == "ByteLevel") {
    ACCORD_RETURN_IF_ERROR(check_component(node, {"add_prefix_space", "trim_offsets"}, {"use_regex"}));
    return std::optional<Frames>();
  }
  auto frames = type == "BertProcessing"      ? read_bert(node)
                : type == "RobertaProcessing" ? read_roberta(node)
                                              : read_template(node);
  ACCORD_RETURN_IF_ERROR(frames.status());
  return std::optional(std::move(frames).value());
}

Result<Side> read_side(const JsonNode& node) {
  ACCORD_ASSIGN_OR_RETURN(const std::string side, node.text());
  if (side != "Left" && side != "Right") return node.error("expected \"Left\" or \"Right\"");
  return side == "Left" ? Side::kLeft : Side::kRight;
}

constexpr int kMaxLength = 1 << 30;

Result<std::size_t> read_length(const JsonNode& node, int min_length) {
  ACCORD_ASSIGN_OR_RETURN(const int length, node.integer(min_length, kMaxLength));
  return static_cast<std::size_t>(length);
}

void shorten(std::vector<TokenId>& ids, std::size_t length, Side side) {
  if (ids.size() <= length) return;
  if (side == Side::kLeft) ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(length));
  ids.resize(length);
}

}  // namespace

Result<Frames> read_frames(const JsonNode& node) {
  if (node.json().is_null()) return Frames();
  std::vector<std::optional<Frames>> list;
  ACCORD_RETURN_IF_ERROR(read_sequence(node, "processors", list, read_post_processor));
  std::erase(list, std::nullopt);
  if (list.size() > 1)
    return node.error_as(StatusCode::kUnsupported, "accord supports at most one post_processor that adds tokens");
  return list.empty() ? Frames() : *std::move(list[0]);
}

std::size_t count_special(const Frame& frame) {
  std::size_t count = 0;
  for (const FramePiece& piece : frame) count += piece.ids.size();
  return count;
}

Result<std::optional<Truncation>> read_truncation(const JsonNode& node, const Frames& frames) {
  if (node.json().is_null()) return std::optional<Truncation>();
  constexpr std::array<std::string_view, 3> kStrategies = {"LongestFirst", "OnlyFirst", "OnlySecond"};
  ACCORD_RETURN_IF_ERROR(check_component(node, {"max_length", "strategy", "stride"}, {"direction"}));
  Truncation truncation;
  ACCORD_ASSIGN_OR_RETURN(truncation.max_length, read_length(node.at("max_length"), 0));
  const std::size_t added = std::max(count_special(frames.single), count_special(frames.pair));
  if (truncation.max_length < added) {
    return node.at("max_length")
        .error(fmt::format("{} is less than the number of special tokens, {}", truncation.max_length, added));
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string strategy, node.at("strategy").text());
  const auto found = std::ranges::find(kStrategies, strategy);
  if (found == kStrategies.end()) {
    return node.at("strategy").error(unknown_name("strategy", strategy, kStrategies).message());
  }
  truncation.strategy = static_cast<Truncation::Strategy>(found - kStrategies.begin());
  if (node.has("direction")) {
    ACCORD_ASSIGN_OR_RETURN(truncation.side, read_side(node.at("direction")));
  }
  return std::optional(truncation);
}

Status truncate(const Truncation& truncation, std::size_t added, std::vector<TokenId>& first,
                std::vector<TokenId>* second) {
  const std::size_t max_tokens = truncation.max_length - added;
  const std::size_t total = first.size() + (second != nullptr ? second->size() : 0);
  if (total <= max_tokens) return {};
  if (max_tokens == 0) {
    first.clear();
    if (second != nullptr) second->clear();
    return {};
  }
  using Strategy = Truncation::Strategy;
  if (truncation.strategy == Strategy::kLongestFirst) {
    // The longer text is shortened to what the shorter one leaves. If that would make it the shorter one, each gets
    // half.
    std::size_t lengths[2] = {max_tokens, 0};
    if (second != nullptr) {
      const bool is_first_longer = first.size() > second->size();
      std::size_t shorter = std::min(first.size(), second->size());
      std::size_t longer = shorter > max_tokens ? shorter : std::max(shorter, max_tokens - shorter);
      if (shorter + longer > max_tokens) {
        shorter = max_tokens / 2;
        longer = shorter + max_tokens % 2;
      }
      lengths[0] = is_first_longer ? longer : shorter;
      lengths[1] = is_first_longer ? shorter : longer;
      shorten(*second, lengths[1], truncation.side);
    }
    shorten(first, lengths[0], truncation.side);
    return {};
  }
  auto* const target = truncation.strategy == Strategy::kOnlyFirst ? &first : second;
  if (target == nullptr || target->size() <= total - max_tokens) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} tokens are too many, and the only text that may be truncated {}", total,
                              target == nullptr ? "is absent" : "is too short"));
  }
  shorten(*target, target->size() - (total - max_tokens), truncation.side);
  return {};
}

Result<std::optional<Padding>> read_padding(const JsonNode& node) {
  if (node.json().is_null()) return std::optional<Padding>();
  ACCORD_RETURN_IF_ERROR(
      check_component(node, {"strategy", "direction", "pad_id", "pad_type_id", "pad_token"}, {"pad_to_multiple_of"}));
  Padding padding;
  const JsonNode strategy = node.at("strategy");
  if (strategy.has("Fixed")) {
    ACCORD_ASSIGN_OR_RETURN(padding.length, read_length(strategy.at("Fixed"), 0));
  } else if (strategy.json() != "BatchLongest") {
    return strategy.error("expected \"BatchLongest\" or {\"Fixed\": length}");
  }
  if (!is_null(node, "pad_to_multiple_of")) {
    ACCORD_ASSIGN_OR_RETURN(const std::size_t multiple, read_length(node.at("pad_to_multiple_of"), 0));
    padding.multiple = std::max<std::size_t>(multiple, 1);
  }
  ACCORD_ASSIGN_OR_RETURN(padding.side, read_side(node.at("direction")));
  ACCORD_ASSIGN_OR_RETURN(padding.id, read_token_id(node.at("pad_id")));
  ACCORD_ASSIGN_OR_RETURN(padding.type_id, read_token_id(node.at("pad_type_id")));
  ACCORD_RETURN_IF_ERROR(node.at("pad_token").text().status());
  return std::optional(padding);
}

void pad(const Padding& padding, Encoding& encoding) {
  std::size_t length = std::max(padding.length, padding.length == 0 ? encoding.ids.size() : 0);
  length = (length + padding.multiple - 1) / padding.multiple * padding.multiple;
  if (encoding.ids.size() >= length) return;
  const std::size_t missing = length - encoding.ids.size();
  const auto extend = [&](auto& list, auto value) {
    list.insert(padding.side == Side::kLeft ? list.begin() : list.end(), missing, value);
  };
  extend(encoding.ids, padding.id);
  extend(encoding.type_ids, padding.type_id);
  extend(encoding.attention_mask, 0U);
}

}  // namespace accord::tokenizer
