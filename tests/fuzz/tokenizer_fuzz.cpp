// libFuzzer target for the code that reads the files of a tokenizer and the texts of users. The first byte of an
// input selects the kind of the rest:
//   0: tokenizer.json, a null byte, a text
//   1: chat_format.json
//   2: a text for a tokenizer with every kind of part
//   3: token ids for it, a byte each

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "accord/chat_format.hpp"
#include "accord/tokenizer.hpp"
#include "tokenizer/utf8.hpp"
#include "unit/tokenizer/tokenizer_json.hpp"

namespace {

using accord::TokenId;
using accord::Tokenizer;

void require(bool held) {
  if (!held) std::abort();
}

// Decoded text is well-formed, as a whole and in pieces.
void decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  const auto text = tokenizer.decode(ids);
  require(!text.ok() || accord::tokenizer::is_well_formed(*text));
  auto decoder = tokenizer.streaming_decoder();
  for (const TokenId id : ids) {
    const auto piece = decoder.push(id);
    if (!piece.ok()) return;
    require(accord::tokenizer::is_well_formed(*piece));
  }
  (void)decoder.finish().ok();
}

// A text has the same ids as its repaired form, the first time and from the cache.
void encode(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  const auto again = tokenizer.encode(accord::tokenizer::well_formed(text));
  require(ids.ok() == again.ok() && (!ids.ok() || *ids == *again));
  if (ids.ok()) decode(tokenizer, *ids);
  (void)tokenizer.encode_pair(text, text).ok();
}

void fuzz_file(std::string_view input) {
  const std::size_t end = std::min(input.find('\0'), input.size());
  const auto tokenizer = Tokenizer::parse(input.substr(0, end));
  if (tokenizer.ok()) encode(*tokenizer, input.substr(std::min(end + 1, input.size())));
}

void fuzz_chat(std::string_view input) {
  const auto format = accord::ChatFormat::parse(input);
  if (!format.ok()) return;
  const std::vector<accord::ChatMessage> messages = {{"system", " a"}, {"user", "\xff\n"}, {"assistant", ""}};
  (void)format->render(std::span(messages).first(2)).ok();
  (void)format->render(messages, accord::AddGenerationPrompt::kNo).ok();
}

const std::array<Tokenizer, 2>& whole_tokenizers() {
  using accord::tokenizer::added_token;
  using accord::tokenizer::tokenizer_json;
  const auto parsed = [](std::string_view model, std::string_view parts, std::string_view added) {
    auto made = Tokenizer::parse(tokenizer_json(model, parts, added));
    require(made.ok());
    return std::move(made).value();
  };
  static const std::array<Tokenizer, 2> tokenizers = {
      parsed(accord::tokenizer::kLower,
             R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
                "decoder": {"type": "ByteLevel"},)",
             added_token("<low>", 11)),
      parsed(accord::tokenizer::kUnaffable,
             R"("normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                               "strip_accents": null, "lowercase": true},
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},)",
             ""),
  };
  return tokenizers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0: fuzz_file(rest); break;
    case 1: fuzz_chat(rest); break;
    case 2:
      for (const Tokenizer& tokenizer : whole_tokenizers()) encode(tokenizer, rest);
      break;
    default:
      for (const Tokenizer& tokenizer : whole_tokenizers()) {
        decode(tokenizer, std::vector<TokenId>(data + 1, data + size));
      }
  }
  return 0;
}
