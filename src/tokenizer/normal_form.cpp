// ASCII is unchanged in every normal form, so only stretches of other characters are processed. Each includes the
// ASCII character before it, because its first mark may compose with that. utf8proc decomposes and composes. Marks
// are sorted here, because utf8proc's own sort takes quadratic time.

#include "tokenizer/normal_form.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tokenizer/characters.hpp"
#include "tokenizer/utf8.hpp"

namespace accord::tokenizer {
namespace {

int combining_class(utf8proc_int32_t character) {
  const auto c = static_cast<char32_t>(character);
  return has_old_combining_class(c) ? utf8proc_get_property(character)->combining_class : 0;
}

void append_decomposed(char32_t character, bool is_compatible, std::vector<utf8proc_int32_t>& characters) {
  if (!has_old_decomposition(character)) {
    characters.push_back(static_cast<utf8proc_int32_t>(character));
    return;
  }
  std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18 characters
  int boundary = UTF8PROC_BOUNDCLASS_START;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (is_compatible ? UTF8PROC_COMPAT : 0));
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character), parts.data(),
                                             static_cast<utf8proc_ssize_t>(parts.size()), options, &boundary);
  characters.insert(characters.end(), parts.begin(), parts.begin() + count);
}

void sort_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto is_starter = [](utf8proc_int32_t character) { return combining_class(character) == 0; };
  for (auto at = characters.begin(); at != characters.end();) {
    const auto marks = std::find_if_not(at, characters.end(), is_starter);
    at = std::find_if(marks, characters.end(), is_starter);
    if (at - marks > 1)
      std::stable_sort(marks, at, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
  }
}

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  const bool is_compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool is_composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto ascii_at = [&](std::size_t at) { return static_cast<unsigned char>(text[at]) < 0x80; };
  std::string normal;
  normal.reserve(text.size());
  std::vector<utf8proc_int32_t> characters;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && ascii_at(end)) ++end;
    if (end == text.size()) return normal.append(text.substr(at));
    const std::size_t begin = end > at ? end - 1 : end;
    normal.append(text.substr(at, begin - at));
    characters.clear();
    at = begin;
    do append_decomposed(next_character(text, at), is_compatible, characters);
    while (at < text.size() && !ascii_at(at));
    sort_marks(characters);
    auto count = static_cast<utf8proc_ssize_t>(characters.size());
    if (is_composed) {
      count = utf8proc_normalize_utf32(characters.data(), count,
                                       static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i)
      append_character(static_cast<char32_t>(characters[static_cast<std::size_t>(i)]), normal);
  }
  return normal;
}

}  // namespace accord::tokenizer
