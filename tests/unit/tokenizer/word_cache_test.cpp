#include "tokenizer/word_cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace accord::tokenizer {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;
using Key = WordCache::Key;

TEST(WordCache, words_that_differ_only_in_null_bytes_are_distinguished) {
  using namespace std::string_view_literals;
  WordCache cache;
  cache.store(Key("a"), std::vector<TokenId>{1});
  EXPECT_THAT(cache.find(Key("a")), ElementsAre(1));
  EXPECT_THAT(cache.find(Key("a\0"sv)), IsEmpty());
  cache.store(Key("a\0"sv), std::vector<TokenId>{2, 3});
  EXPECT_THAT(cache.find(Key("a\0"sv)), ElementsAre(2, 3));
  EXPECT_THAT(cache.find(Key("a\0\0"sv)), IsEmpty());
}

TEST(WordCache, a_word_has_its_own_tokens_or_none_after_any_number_of_words) {
  WordCache cache;
  std::map<std::string, std::vector<TokenId>> all;
  for (TokenId i = 0; i < 100'000; ++i) {
    const std::string word = "word " + std::to_string(i * 7919);
    all[word] = std::vector<TokenId>(1 + i % WordCache::kMaxTokens, i);
    cache.store(Key(word), all[word]);
    EXPECT_THAT(cache.find(Key(word)), ElementsAreArray(all[word]));
  }
  std::size_t kept = 0;
  for (const auto& [word, tokens] : all) {
    const auto found = cache.find(Key(word));
    if (found.empty()) continue;
    ++kept;
    EXPECT_THAT(found, ElementsAreArray(tokens));
  }
  EXPECT_GT(kept, 15'000U);  // nearly all of 16,384 places are in use
}

TEST(WordCache, a_word_of_too_many_tokens_is_not_cached) {
  WordCache cache;
  cache.store(Key("long"), std::vector<TokenId>(WordCache::kMaxTokens + 1, 5));
  EXPECT_THAT(cache.find(Key("long")), IsEmpty());
}

}  // namespace
}  // namespace accord::tokenizer
