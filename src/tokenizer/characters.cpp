#include "tokenizer/characters.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

struct Range {
  char32_t first, last;
};

#include "tokenizer/unicode_versions.inc"

bool is_in(std::span<const Range> ranges, char32_t character) {
  const auto found = std::ranges::lower_bound(ranges, character, {}, &Range::last);
  return found != ranges.end() && found->first <= character;
}

utf8proc_category_t category(char32_t character) { return utf8proc_category(static_cast<utf8proc_int32_t>(character)); }

bool is_any_mark(utf8proc_category_t category) {
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

bool is_any_number(utf8proc_category_t category) {
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool is_any_letter(utf8proc_category_t category) {
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

// Upper and lower case pairs added in Unicode 16 and 17.
struct LowerRange {
  char32_t first, last, lower;
};
constexpr LowerRange kLaterLower[] = {
    {0x1c89, 0x1c89, 0x1c8a},    {0xa7cb, 0xa7cb, 0x264},     {0xa7cc, 0xa7cc, 0xa7cd}, {0xa7ce, 0xa7ce, 0xa7cf},
    {0xa7d2, 0xa7d2, 0xa7d3},    {0xa7d4, 0xa7d4, 0xa7d5},    {0xa7da, 0xa7da, 0xa7db}, {0xa7dc, 0xa7dc, 0x19b},
    {0x10d50, 0x10d65, 0x10d70}, {0x16ea0, 0x16eb8, 0x16ebb},
};

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x9 && c <= 0xd);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_word(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  const auto kind = category(c);
  return is_any_letter(kind) || is_any_mark(kind) || kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL ||
         kind == UTF8PROC_CATEGORY_PC || is_in(kOtherWord, c);
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return is_any_number(category(c)) || is_in(kLaterNumeric, c);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7f && !(is_word(c) && c != '_');
  constexpr char32_t kFormerPunctuation[] = {0x166d,
                                             0x111c9};  // punctuation in Unicode 8, but not in the current version
  if (std::ranges::find(kFormerPunctuation, c) != std::end(kFormerPunctuation)) return true;
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO && !is_in(kLaterPunctuation, c);
}

bool is_cleaned(char32_t c) { return is_in(kCleaned, c); }

bool is_nonspacing_mark(char32_t c) {
  constexpr char32_t kFormerPunctuation = 0x1734;
  return c == kFormerPunctuation || (category(c) == UTF8PROC_CATEGORY_MN && !is_in(kLaterNonspacing, c));
}

bool is_mark(char32_t c) {
  const bool was_mark = c == 0x1cf2 || c == 0x1cf3;
  return was_mark || (is_any_mark(category(c)) && !is_in(kLaterMarks, c));
}

bool is_chinese(char32_t c) {
  constexpr Range kBlocks[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},   {0x20000, 0x2a6df},
                               {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
  return is_in(kBlocks, c);
}

bool has_old_decomposition(char32_t c) { return !is_in(kLaterDecompositions, c); }
bool has_old_combining_class(char32_t c) { return !is_in(kLaterMarks, c); }

void append_lower(char32_t c, std::string& text) {
  if (c == 0x130) {  // the only character whose lower case is two characters
    text += "i\xcc\x87";
    return;
  }
  const auto later = std::ranges::lower_bound(kLaterLower, c, {}, &LowerRange::last);
  const bool is_later = later != std::end(kLaterLower) && later->first <= c;
  append_character(is_later ? later->lower + (c - later->first)
                            : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
                   text);
}

}  // namespace accord::tokenizer
