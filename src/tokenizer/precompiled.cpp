// The table has the bytes of a double-array trie (Aoe 1989, in the form of the library Darts-clone), then the
// replacements, each ended by a zero byte. A unit of the trie has a label and the offset of its children, or the place
// of a replacement.
//
// A grapheme of up to five bytes is replaced as a whole by what belongs to the shortest text that it begins with; other
// characters are replaced one by one. The tokenizers library does it so, and models were trained with it.
#include "tokenizer/precompiled.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "tokenizer/components.hpp"
#include "tokenizer/regex.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

constexpr std::size_t kMaxGrapheme = 5;  // bytes of one that is replaced as a whole

/// Returns the bytes that `text` stands for; nullopt if it is not base64 with padding.
std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<std::uint8_t, 256> values;
  values.fill(0xff);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::uint8_t>(i);
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::uint8_t value = values[static_cast<unsigned char>(text[i])];
    if (value == 0xff) return std::nullopt;
    bits = bits << 6 | value;
    if (i % 4 != 0) bytes += static_cast<char>(bits >> (6 - 2 * (i % 4)) & 0xff);
  }
  return bytes;
}

class Precompiled : public Normalizer {
 public:
  Precompiled(std::vector<std::uint32_t> units, std::string replacements, Regex grapheme)
      : units_(std::move(units)), replacements_(std::move(replacements)), grapheme_(std::move(grapheme)) {}

  Status apply(NormalText& text) const override {
    std::string result;
    result.reserve(text.text.size());
    const std::string_view all = text.text;
    for (std::size_t at = 0; at < all.size();) {
      Match match;
      ACCORD_ASSIGN_OR_RETURN(const bool is_found, grapheme_.find(all, at, match));
      const std::size_t end = is_found ? match.end : all.size();
      const std::size_t before = result.size();
      const std::string_view grapheme = all.substr(at, end - at);
      const auto whole = grapheme.size() <= kMaxGrapheme ? replacement_of(grapheme) : std::nullopt;
      if (whole) {
        result += *whole;
      } else {
        add_characters(grapheme, result);
      }
      if (at == 0 && result.size() == before) text.begins_input = false;
      at = end;
    }
    text.text = std::move(result);
    return {};
  }

 private:
  void add_characters(std::string_view grapheme, std::string& result) const {
    for (std::size_t at = 0; at < grapheme.size();) {
      const std::size_t begin = at;
      next_character(grapheme, at);
      const std::string_view character = grapheme.substr(begin, at - begin);
      result += replacement_of(character).value_or(character);
    }
  }

  // Returns what belongs to the shortest text of the table that `text` begins with; nullopt if there is none, also
  // where the table leads beyond its end.
  std::optional<std::string_view> replacement_of(std::string_view text) const {
    const auto offset = [](std::uint32_t unit) -> std::size_t { return unit >> 10 << ((unit & 1U << 9) >> 6); };
    std::size_t at = offset(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      at ^= byte;
      if (byte == 0 || at >= units_.size()) return std::nullopt;
      const std::uint32_t unit = units_[at];
      if ((unit & (1U << 31 | 0xff)) != byte) return std::nullopt;
      at ^= offset(unit);
      if ((unit >> 8 & 1) == 0) continue;
      if (at >= units_.size()) return std::nullopt;
      const std::size_t begin = units_[at] & ~(1U << 31);
      if (begin >= replacements_.size()) return std::nullopt;
      return std::string_view(replacements_.c_str() + begin);
    }
    return std::nullopt;
  }

  std::vector<std::uint32_t> units_;
  std::string replacements_;
  Regex grapheme_;
};

}  // namespace

Result<std::unique_ptr<Normalizer>> read_precompiled(const JsonNode& node) {
  ACCORD_RETURN_IF_ERROR(check_component(node, {"precompiled_charsmap"}));
  const JsonNode table_node = node.at("precompiled_charsmap");
  ACCORD_ASSIGN_OR_RETURN(const std::string text, table_node.text());
  const std::optional<std::string> bytes = decode_base64(text);
  if (!bytes) return table_node.error("expected base64");
  std::uint32_t size = 0;
  if (bytes->size() >= sizeof size) std::memcpy(&size, bytes->data(), sizeof size);
  if (size == 0 || size % sizeof(std::uint32_t) != 0 || size > bytes->size() - sizeof size)
    return table_node.error(fmt::format("a table of {} bytes cannot have a trie of {}", bytes->size(), size));
  std::vector<std::uint32_t> units(size / sizeof(std::uint32_t));
  std::memcpy(units.data(), bytes->data() + sizeof size, size);
  std::string replacements = bytes->substr(sizeof size + size);
  if (!is_well_formed(replacements)) return table_node.error("its replacements are not UTF-8");
  ACCORD_ASSIGN_OR_RETURN(Regex grapheme, Regex::compile("\\X"));
  return std::unique_ptr<Normalizer>(
      std::make_unique<Precompiled>(std::move(units), std::move(replacements), std::move(grapheme)));
}

}  // namespace accord::tokenizer
