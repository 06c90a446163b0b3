#pragma once
// Small tokenizer files whose results can be worked out by hand.

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace accord::tokenizer {

/// Returns a tokenizer.json with a model and other parts (`"normalizer": ...`, each followed by a comma).
inline std::string tokenizer_json(std::string_view model, std::string_view parts = "", std::string_view added = "") {
  return fmt::format(R"({{"version": "1.0", {} "added_tokens": [{}], "model": {}}})", parts, added, model);
}

inline std::string added_token(std::string_view content, int id, std::string_view changes = "") {
  return fmt::format(
      R"({{"id": {}, "content": "{}", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true{}}})",
      id, content, changes);
}

/// Merges: l+o, lo+w, e+r, in this order.
constexpr std::string_view kLower = R"({"type": "BPE", "unk_token": "?",
    "vocab": {"l": 0, "o": 1, "w": 2, "e": 3, "r": 4, "lo": 5, "low": 6, "er": 7, "?": 8, "we": 9, "Ġ": 10},
    "merges": ["l o", ["lo", "w"], "e r"]})";

/// The example from BERT's own code.
constexpr std::string_view kUnaffable =
    R"({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 10,
    "vocab": {"[UNK]": 0, "want": 1, "##want": 2, "##ed": 3, "wa": 4, "un": 5, "runn": 6, "##ing": 7, "##aff": 8, "##able": 9}})";

/// A token for each byte of "€", and no other.
constexpr std::string_view kBytes = R"({"type": "BPE", "byte_fallback": true, "unk_token": "?", "fuse_unk": true,
    "vocab": {"?": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3, "a": 4}, "merges": []})";

}  // namespace accord::tokenizer
