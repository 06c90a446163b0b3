#include "base/text.hpp"

#include <gmock/gmock.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>

namespace accord {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kOps[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"};

TEST(NearestName, finds_the_intended_name) {
  EXPECT_EQ(nearest_name("allreduce", kOps), "all_reduce");
  EXPECT_EQ(nearest_name("All_Reduce", kOps), "all_reduce");
  EXPECT_EQ(nearest_name("brodcast", kOps), "broadcast");
  EXPECT_EQ(nearest_name("barreir", kOps), "barrier");
}

TEST(NearestName, offers_nothing_for_a_word_unlike_all_names) {
  EXPECT_EQ(nearest_name("matmul", kOps), std::nullopt);
  EXPECT_EQ(nearest_name("", kOps), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), kOps), std::nullopt);
  EXPECT_EQ(nearest_name("x", std::vector<std::string_view>{"y"}), std::nullopt);
}

TEST(NearestName, counts_a_swap_of_adjacent_letters_once) {
  const std::vector<std::string_view> names = {"abd", "bac"};
  EXPECT_EQ(nearest_name("abc", names), "abd");  // both at distance 1: the first is chosen
  const std::vector<std::string_view> swapped = {"bac"};
  EXPECT_EQ(nearest_name("abc", swapped), "bac");
}

TEST(UnknownName, lists_all_names_if_none_is_near) {
  EXPECT_EQ(unknown_name("operation", "matmul", kOps).message(),
            "unknown operation \"matmul\"; available: all_reduce, all_gather, reduce_scatter, broadcast and barrier");
  EXPECT_THAT(unknown_name("operation", "matmul", {}).message(), HasSubstr("none is available"));
}

TEST(RanksText, writes_ranges_and_lists) {
  const auto text = [](std::vector<Rank> ranks) { return ranks_text(ranks); };
  EXPECT_EQ(text({}), "no ranks");
  EXPECT_EQ(text({2}), "rank 2");
  EXPECT_EQ(text({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(text({5, 0, 3}), "ranks 0, 3 and 5");
  EXPECT_EQ(text({0, 1, 2, 3}), "ranks 0-3");
  EXPECT_EQ(text({0, 1, 2, 3, 7, 7, 9, 10}), "ranks 0-3, 7, 9 and 10");
}

TEST(BytesText, uses_the_most_readable_unit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(64 << 10), "64 KiB");
  EXPECT_EQ(bytes_text(3 << 19), "1.5 MiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1 MiB");
  EXPECT_EQ(bytes_text(std::size_t{5} << 30), "5 GiB");
  EXPECT_EQ(bytes_text(std::numeric_limits<std::size_t>::max()), "16 EiB");
}

TEST(DurationText, is_short) {
  EXPECT_EQ(duration_text(std::chrono::milliseconds(250)), "250 ms");
  EXPECT_EQ(duration_text(std::chrono::milliseconds(1500)), "1.5 s");
  EXPECT_EQ(duration_text(std::chrono::minutes(5)), "300 s");
  EXPECT_EQ(duration_text(Duration::zero()), "0 ms");
}

TEST(QuotedText, shows_every_byte_and_truncates_long_text) {
  EXPECT_EQ(quoted_text("a/b"), "\"a/b\"");
  EXPECT_EQ(quoted_text(std::string_view("\"\\\n\0\xff", 5)), "\"\\\"\\\\\\x0a\\x00\\xff\"");
  EXPECT_EQ(quoted_text("abcdef", 3), "\"abc...\"");
}

TEST(SplitText, returns_the_pieces_between_separators) {
  EXPECT_THAT(split_text("", ','), ElementsAre());
  EXPECT_THAT(split_text("a", ','), ElementsAre("a"));
  EXPECT_THAT(split_text(",a,,b,", ','), ElementsAre("", "a", "", "b", ""));
}

std::string random_text(std::mt19937& random, std::string_view letters, std::size_t longest) {
  std::string text(random() % (longest + 1), ' ');
  for (char& c : text) c = letters[random() % letters.size()];
  return text;
}

TEST(SplitText, joined_again_gives_the_text) {
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    const std::string text = random_text(random, "ab,", 12);
    std::string joined;
    for (const std::string_view piece : split_text(text, ',')) joined += std::string(piece) + ",";
    EXPECT_EQ(joined, text.empty() ? "" : text + ",");
  }
}

TEST(ParseInteger, agrees_with_strtoll_on_any_text) {
  std::mt19937 random(2);
  int accepted = 0;
  for (int i = 0; i < 50000; ++i) {
    const std::string text = random_text(random, "0123456789-+ x", random() % 4 == 0 ? 21 : 4);
    errno = 0;
    char* end = nullptr;
    const long long expected = std::strtoll(text.c_str(), &end, 10);
    // strtoll also accepts a leading plus sign and spaces; parse_integer does not.
    const bool plain = !text.empty() && *end == '\0' && text[0] != '+' && text[0] != ' ' && errno == 0;
    const Result<std::int64_t> value = parse_integer(text, "count");
    ASSERT_EQ(value.ok(), plain) << text;
    if (value.ok()) {
      ASSERT_EQ(*value, expected) << text;
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 1000);
}

TEST(ParseInteger, reports_the_error) {
  EXPECT_EQ(parse_integer("12a", "ACCORD_X").status().message(), "ACCORD_X: \"12a\" is not a whole number");
  EXPECT_THAT(parse_integer("9223372036854775808", "n").status().message(), HasSubstr("64 bits"));
  EXPECT_EQ(*parse_integer("-9223372036854775808", "n"), std::numeric_limits<std::int64_t>::min());
}

TEST(ParseBytes, reads_units_of_1024) {
  EXPECT_EQ(*parse_bytes("4096"), 4096u);
  EXPECT_EQ(*parse_bytes("4k"), 4096u);
  EXPECT_EQ(*parse_bytes("2M"), 2097152u);
  EXPECT_EQ(*parse_bytes("1g"), 1073741824u);
  EXPECT_EQ(*parse_bytes("0"), 0u);
  EXPECT_EQ(*parse_bytes("inf"), std::numeric_limits<std::size_t>::max());
}

TEST(ParseBytes, agrees_with_a_slow_parser_on_any_text) {
  std::mt19937 random(3);
  for (int i = 0; i < 50000; ++i) {
    const std::string text = random_text(random, "0123456789kKmMgG-.", random() % 4 == 0 ? 22 : 3);
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    long double expected = digits > 0 && text.size() - digits <= 1 ? 0 : -1;
    for (std::size_t d = 0; d < digits && expected >= 0; ++d) expected = expected * 10 + (text[d] - '0');
    if (expected >= 0 && digits < text.size()) {
      const std::size_t unit = std::string_view("kKmMgG").find(text[digits]);
      expected = unit == std::string_view::npos ? -1 : expected * std::pow(1024.0L, static_cast<int>(unit / 2 + 1));
    }
    const bool valid = expected >= 0 && expected < 18446744073709551616.0L;
    const Result<std::size_t> bytes = parse_bytes(text);
    ASSERT_EQ(bytes.ok(), valid) << text;
    if (valid) {
      ASSERT_EQ(static_cast<long double>(*bytes), expected) << text;
    }
  }
}

}  // namespace
}  // namespace accord
