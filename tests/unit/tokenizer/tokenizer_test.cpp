#include "accord/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "unit/tokenizer/tokenizer_json.hpp"

namespace accord::tokenizer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Ids = std::vector<TokenId>;

Tokenizer parsed(const std::string& json) {
  auto made = Tokenizer::parse(json);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return std::move(made).value();
}

Ids encoded(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  const auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().to_string();
  return ids.ok() ? *ids : Ids();
}

TEST(Tokenizer, bpe_merges_the_pair_of_the_lowest_rank_first) {
  const auto tokenizer = parsed(tokenizer_json(kLower));
  EXPECT_THAT(encoded(tokenizer, "lower"), ElementsAre(6, 7));
  EXPECT_THAT(encoded(tokenizer, "wer"), ElementsAre(2, 7));  // "we" is a token, but no merge makes it
  EXPECT_THAT(encoded(tokenizer, "lolowlo"), ElementsAre(5, 6, 5));
  EXPECT_THAT(encoded(tokenizer, "lx"), ElementsAre(0, 8));
  EXPECT_THAT(encoded(tokenizer, ""), IsEmpty());
}

TEST(Tokenizer, bpe_merges_the_leftmost_of_equal_pairs_first) {
  const auto tokenizer = parsed(tokenizer_json(R"({"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": ["a a"]})"));
  EXPECT_THAT(encoded(tokenizer, "aaaaa"), ElementsAre(1, 1, 0));
}

TEST(Tokenizer, a_long_word_has_the_tokens_of_its_parts) {
  const auto tokenizer = parsed(tokenizer_json(kLower));
  std::string text;
  Ids expected;
  for (int i = 0; i < 2000; ++i) {
    text += "lower";
    expected.insert(expected.end(), {6, 7});
  }
  EXPECT_EQ(encoded(tokenizer, text), expected);
}

TEST(Tokenizer, ignore_merges_keeps_a_word_that_is_a_token) {
  std::string model(kLower);
  model.insert(1, R"("ignore_merges": true, )");
  const auto tokenizer = parsed(tokenizer_json(model));
  EXPECT_THAT(encoded(tokenizer, "we"), ElementsAre(9));
  EXPECT_THAT(encoded(tokenizer, "wer"), ElementsAre(2, 7));
}

TEST(Tokenizer, word_piece_takes_the_longest_token_from_the_left) {
  const auto tokenizer = parsed(tokenizer_json(kUnaffable, R"("pre_tokenizer": {"type": "WhitespaceSplit"},)"));
  EXPECT_THAT(encoded(tokenizer, "unwanted running"), ElementsAre(5, 2, 3, 6, 7));
  EXPECT_THAT(encoded(tokenizer, "unaffable"), ElementsAre(5, 8, 9));
  EXPECT_THAT(encoded(tokenizer, "unwantedX unaffableaff"), ElementsAre(0, 0));  // no such piece; too long
}

TEST(Tokenizer, characters_outside_the_vocabulary_become_byte_tokens) {
  const auto tokenizer = parsed(tokenizer_json(kBytes, R"("decoder": {"type": "ByteFallback"},)"));
  EXPECT_THAT(encoded(tokenizer, "a\xe2\x82\xac"), ElementsAre(4, 1, 2, 3));
  EXPECT_THAT(encoded(tokenizer, "xy"), ElementsAre(0));  // one token for both, as unknown characters are fused
  EXPECT_EQ(*tokenizer.decode(Ids{4, 1, 2, 3}), "a\xe2\x82\xac");
  EXPECT_EQ(*tokenizer.decode(Ids{1, 2, 4}),
            "\xef\xbf\xbd\xef\xbf\xbd"
            "a");
}

TEST(Tokenizer, malformed_text_is_treated_as_its_replacement) {
  const auto tokenizer = parsed(tokenizer_json(kLower));
  EXPECT_EQ(encoded(tokenizer, "low\xe2\x82low\xff"), encoded(tokenizer, "low\xef\xbf\xbdlow\xef\xbf\xbd"));
}

TEST(Tokenizer, added_tokens_are_found_before_the_text_is_split) {
  const auto tokenizer =
      parsed(tokenizer_json(kLower, "", added_token("<low>", 11) + "," + added_token("<low>er", 12)));
  EXPECT_THAT(encoded(tokenizer, "lo<low>er<low>e<low"), ElementsAre(5, 12, 11, 3, 8, 6));
  EXPECT_EQ(tokenizer.vocabulary_size(), 13U);
  EXPECT_EQ(tokenizer.id_of("<low>"), 11U);
  EXPECT_EQ(tokenizer.token_of(12), "<low>er");
  EXPECT_EQ(tokenizer.token_of(13), std::nullopt);
  EXPECT_EQ(*tokenizer.decode(Ids{5, 11, 6}), "lo low");
  EXPECT_EQ(*tokenizer.decode(Ids{5, 11, 6}, ShowSpecial::kShow), "lo <low> low");
}

TEST(Tokenizer, a_stream_returns_text_once_its_characters_are_complete) {
  const auto tokenizer = parsed(tokenizer_json(kBytes, R"("decoder": {"type": "ByteFallback"},)"));
  auto decoder = tokenizer.streaming_decoder();
  EXPECT_EQ(*decoder.push(4), "a");
  EXPECT_EQ(*decoder.push(1), "");
  EXPECT_EQ(*decoder.push(2), "");
  EXPECT_EQ(*decoder.push(3), "\xe2\x82\xac");
  EXPECT_EQ(*decoder.push(1), "");
  EXPECT_EQ(*decoder.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(*decoder.push(4), "a");
}

TEST(Tokenizer, special_tokens_are_added_or_omitted) {
  const auto tokenizer =
      parsed(tokenizer_json(kLower, R"("post_processor": {"type": "BertProcessing", "cls": ["l", 0], "sep": ["o", 1]},
                 "truncation": {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Left"},)"));
  EXPECT_THAT(encoded(tokenizer, "low"), ElementsAre(0, 6, 1));
  EXPECT_THAT(encoded(tokenizer, "low", {SpecialTokens::kLeaveOut}), ElementsAre(6));
  EXPECT_THAT(encoded(tokenizer, "llllwer"), ElementsAre(0, 0, 2, 7, 1));
  EXPECT_THAT(encoded(tokenizer, "llllwer", {SpecialTokens::kAdd, TextLength::kWhole}),
              ElementsAre(0, 0, 0, 0, 0, 2, 7, 1));
  const auto pair = tokenizer.encode_pair("low", "er");
  ASSERT_TRUE(pair.ok());
  EXPECT_THAT(pair->ids, ElementsAre(0, 6, 1, 7, 1));
  EXPECT_THAT(pair->type_ids, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(pair->attention_mask, ElementsAre(1, 1, 1, 1, 1));
}

TEST(Tokenizer, threads_get_the_same_ids) {
  const auto tokenizer = parsed(tokenizer_json(
      kLower, R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},)"));
  const Ids expected = encoded(tokenizer, "low lower lowest");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([copy = tokenizer, &expected] {
      for (int repeat = 0; repeat < 50; ++repeat) EXPECT_EQ(*copy.encode("low lower lowest"), expected);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Tokenizer, errors_name_the_file_and_the_key) {
  const auto message = [](const std::string& json) { return Tokenizer::parse(json, "my.json").status().to_string(); };
  EXPECT_THAT(message("{"), HasSubstr("corrupt: my.json: "));
  EXPECT_THAT(message(tokenizer_json(R"({"type": "WordLevel"})")), HasSubstr("unsupported: my.json: model.type: "));
  EXPECT_THAT(message(tokenizer_json(kLower, R"("decodr": null,)")),
              HasSubstr("my.json: unknown key \"decodr\"; did you mean \"decoder\"?"));
  EXPECT_THAT(
      message(tokenizer_json(
          kLower, R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]},)")),
      HasSubstr("my.json: normalizer.normalizers[1]: lacks \"strip_left\""));
  EXPECT_THAT(message(tokenizer_json(kLower, "", added_token("<a>", 99))),
              HasSubstr("added_tokens[0].id: \"<a>\" has id 99"));
  EXPECT_THAT(message(tokenizer_json(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]})")),
              HasSubstr("model.merges: entry 0: the vocabulary has no token \"b\""));
}

TEST(Tokenizer, errors_in_the_long_lists_name_the_entry) {
  const auto message = [](std::string_view vocab, std::string_view merges) {
    const auto model = fmt::format(R"({{"type": "BPE", "vocab": {}, "merges": {}}})", vocab, merges);
    return Tokenizer::parse(tokenizer_json(model), "my.json").status().to_string();
  };
  EXPECT_THAT(message(R"({"a": 0, "b": 1, "ab": 2})", R"(["a b", ["a", "b"]])"), "ok");
  EXPECT_THAT(message(R"({"a": 0, "b": -1})", "[]"),
              "corrupt: my.json: model.vocab: the id of \"b\" is not a non-negative integer of up to 31 bits");
  EXPECT_THAT(message(R"({"a": {"b": 1}})", "[]"), HasSubstr("model.vocab: the id of \"a\""));
  EXPECT_THAT(message(R"({"a": 2147483648})", "[]"), HasSubstr("model.vocab: the id of \"a\""));
  EXPECT_THAT(message(R"({"a": 1, "b": 1})", "[]"), HasSubstr("model.vocab: \"a\" and \"b\" have the same id, 1"));
  EXPECT_THAT(message(R"({"a": 1, "a": 2})", "[]"), HasSubstr("model.vocab: \"a\" appears twice"));
  EXPECT_THAT(message("[]", "[]"), HasSubstr("model.vocab: expected an object"));
  EXPECT_THAT(message("{}", "{}"), HasSubstr("model.merges: expected a list"));
  for (const auto merge :
       {"7", "\"ab\"", "\"a b c\"", "[\"a\"]", "[\"a\", \"b\", \"c\"]", "[\"a\", 1]", "[[\"a\", \"b\"]]", "{}"}) {
    EXPECT_THAT(message(R"({"a": 0, "b": 1, "ab": 2})", fmt::format("[\"a b\", {}]", merge)),
                "corrupt: my.json: model.merges: entry 1: expected two tokens");
  }
}

TEST(Tokenizer, text_without_tokens_is_an_error_if_there_is_no_unknown_token) {
  const auto tokenizer =
      parsed(tokenizer_json(R"({"type": "BPE", "unk_token": "?", "vocab": {"a": 0}, "merges": []})"));
  EXPECT_THAT(encoded(tokenizer, "aa"), ElementsAre(0, 0));
  EXPECT_EQ(tokenizer.encode("ab").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace accord::tokenizer
