// Sizes as text: their values, and rejected texts.

#include <gmock/gmock.h>

#include <random>

#include "engine/graph/derived_size.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {
namespace {

using ::testing::HasSubstr;

const std::map<std::string, std::int64_t> kSymbols = {{"b", 3}, {"n", 5}, {"long_name2", 7}};

std::int64_t value_of(const std::string& text) {
  const auto size = SymbolicInt::parse(text);
  EXPECT_TRUE(size.ok()) << text << ": " << size.status().to_string();
  const auto value = size->evaluate(kSymbols);
  EXPECT_TRUE(value.ok()) << text;
  return *value;
}

TEST(DerivedSizes, determine_the_value_of_their_symbol) {
  const auto solved = [](const std::string& text, std::int64_t size) -> std::optional<std::int64_t> {
    const auto derived = derived_size(*SymbolicInt::parse(text));
    return derived ? derived->symbol_value(size) : std::nullopt;
  };
  EXPECT_EQ(solved("b", 7), 7);
  EXPECT_EQ(solved("2*b", 14), 7);
  EXPECT_EQ(solved("2*b", 15), std::nullopt);
  EXPECT_EQ(solved("1 + b*3", 22), 7);
  EXPECT_EQ(solved("b - 1", 6), 7);
  for (const char* none : {"5", "b*n", "b*b", "b + n", "5 - b", "0*b"}) EXPECT_FALSE(solved(none, 4)) << none;
}

TEST(SymbolicInts, evaluate_to_the_value_of_the_text) {
  EXPECT_EQ(value_of("12"), 12);
  EXPECT_EQ(value_of("-1"), -1);
  EXPECT_EQ(value_of("b"), 3);
  EXPECT_EQ(value_of("long_name2*2"), 14);
  EXPECT_EQ(value_of(" b * n + 1 "), 16);
  EXPECT_EQ(value_of("b - n - 1"), -3);
  EXPECT_EQ(value_of("b - (n - 1)"), -1);
  EXPECT_EQ(value_of("2*b + -1"), 5);
  EXPECT_EQ(value_of("(b + 1)*(n - 2)*2"), 24);
  EXPECT_EQ(value_of("--b"), 3);
  EXPECT_EQ(value_of("b*0 + n*(b - b)"), 0);
}

TEST(SymbolicInts, that_are_equal_as_polynomials_compare_equal) {
  const auto a = SymbolicInt::parse("(b + n)*(b - n) + 4");
  const auto b = SymbolicInt::parse("4 + b*b - n*n");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(*SymbolicInt::parse("b - b + 7"), SymbolicInt(7));
  EXPECT_TRUE(SymbolicInt::parse("b - b + 7")->is_constant());
  EXPECT_EQ(SymbolicInt::parse("b*n - n*b")->constant(), 0);
  EXPECT_FALSE(SymbolicInt::parse("b + 7")->is_constant());
}

TEST(SymbolicInts, are_written_so_that_they_read_back_equal) {
  for (const auto* text : {"0", "-5", "b", "b*n + 1", "-2*b*b + n - 3", "(b + n + 1)*(b - 2)"}) {
    const auto size = SymbolicInt::parse(text);
    ASSERT_TRUE(size.ok());
    const auto again = SymbolicInt::parse(size->to_string());
    ASSERT_TRUE(again.ok()) << size->to_string();
    EXPECT_EQ(*size, *again) << text;
  }
  EXPECT_EQ(SymbolicInt::parse("1 + n*b*2 - b")->to_string(), "2*b*n - b + 1");
}

TEST(SymbolicInts, agree_with_arithmetic_on_random_expressions) {
  std::mt19937 random(3);
  // Returns a random expression as text, with the value that was computed on the way.
  const auto make = [&](auto&& self, int depth) -> std::pair<std::string, std::int64_t> {
    const auto kind = depth == 0 ? random() % 2 : random() % 5;
    if (kind == 0) {
      const auto number = static_cast<std::int64_t>(random() % 10);
      return {std::to_string(number), number};
    }
    if (kind == 1) {
      const auto symbol = std::next(kSymbols.begin(), static_cast<std::ptrdiff_t>(random() % kSymbols.size()));
      return {symbol->first, symbol->second};
    }
    const auto [left, x] = self(self, depth - 1);
    const auto [right, y] = self(self, depth - 1);
    if (kind == 2) return {"(" + left + " + " + right + ")", x + y};
    if (kind == 3) return {"(" + left + "-" + right + ")", x - y};
    return {left + " * " + right, x * y};
  };
  for (int round = 0; round < 2000; ++round) {
    const auto [text, expected] = make(make, 3);
    EXPECT_EQ(value_of(text), expected) << text;
  }
}

TEST(SymbolicInts, have_bounds_that_hold_for_all_values_of_their_symbols) {
  // Computes the smallest and largest of all values, one by one.
  const std::map<std::string, SymbolicInt::Range> ranges = {{"a", {1, 9}}, {"b", {2, 7}}, {"c", {3, 3}}};
  const auto values = [&](const SymbolicInt& size) {
    SymbolicInt::Range found{INT64_MAX, INT64_MIN};
    for (auto a = ranges.at("a").min; a <= ranges.at("a").max; ++a) {
      for (auto b = ranges.at("b").min; b <= ranges.at("b").max; ++b) {
        const auto value = *size.evaluate({{"a", a}, {"b", b}, {"c", 3}});
        found = {std::min(found.min, value), std::max(found.max, value)};
      }
    }
    return found;
  };
  for (const auto* text : {"7", "0", "a", "a*b*c + 1", "a - b + 1", "3 - a", "a*(b - 1)", "(b - 1)*(b - 1)",
                           "(10 - a) + 2*b", "2*a*b - b + 1", "-a*b"}) {
    const auto size = *SymbolicInt::parse(text);
    const auto range = size.range(ranges);
    ASSERT_TRUE(range.ok()) << text;
    EXPECT_EQ(range->min, values(size).min) << text;
    EXPECT_EQ(range->max, values(size).max) << text;
  }
  for (const auto* text : {"(10 - a)*b", "a*a - 3*a*b + b*b", "(a - 5)*(b - 4)", "a*a*a - 9*a*a"}) {
    const auto size = *SymbolicInt::parse(text);
    EXPECT_LE(size.range(ranges)->min, values(size).min) << text;
    EXPECT_GE(size.range(ranges)->max, values(size).max) << text;
  }
  EXPECT_THAT(SymbolicInt::parse("a + d")->range(ranges).status().message(), HasSubstr("\"d\", which has no value"));
  const auto large = SymbolicInt::parse("a*a")->range({{"a", {1, INT64_MAX}}});
  EXPECT_THAT(large.status().message(), HasSubstr("does not fit"));
}

TEST(SymbolicInts, reject_invalid_text) {
  for (const auto* text :
       {"", " ", "b +", "* b", "b b", "(b", "b)", "2b", "b//2", "b/2", "1.5", "b, n", "b\n", "\x01", "b^2"}) {
    EXPECT_EQ(SymbolicInt::parse(text).status().code(), StatusCode::kCorrupt) << text;
  }
}

TEST(SymbolicInts, reject_values_that_are_too_large_instead_of_wrapping) {
  EXPECT_THAT(SymbolicInt::parse("9223372036854775808").status().message(), HasSubstr("does not fit"));
  EXPECT_THAT(SymbolicInt::parse("9223372036854775807 + 1").status().message(), HasSubstr("does not fit"));
  EXPECT_THAT(SymbolicInt::parse("4294967296*4294967296").status().message(), HasSubstr("does not fit"));
  EXPECT_EQ(SymbolicInt::parse("9223372036854775807")->constant(), INT64_MAX);
  EXPECT_EQ(SymbolicInt::parse(std::string(500, '(') + "b" + std::string(500, ')')).status().code(),
            StatusCode::kCorrupt);
  EXPECT_EQ(SymbolicInt::parse(std::string(1000, '-') + "b").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(SymbolicInt::parse("b*b*b*b*b*b*b*b*b").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(SymbolicInt::parse("(a+b+c+d+e+f)*(a+b+c+d+e+f)*(a+b+c+d+e+f)*(a+b+c+d+e+f)").status().code(),
            StatusCode::kCorrupt);
}

TEST(SymbolicInts, evaluate_only_with_all_symbols_and_within_64_bits) {
  const auto size = *SymbolicInt::parse("b*n");
  EXPECT_EQ(size.evaluate({{"b", 1}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(size.evaluate({{"b", 1}}).status().message(), HasSubstr("\"n\", which has no value"));
  EXPECT_EQ(size.evaluate({{"b", INT64_MAX}, {"n", 2}}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(SymbolicInt::parse("b + n")->evaluate({{"b", INT64_MAX}, {"n", 1}}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace accord::engine
