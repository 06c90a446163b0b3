#pragma once
// Classes of characters as the tokenizers library knows them. It takes them from several tables of different versions of Unicode; a
// model was trained with just these, so they are followed, each to its version.

#include <string>

namespace accord::tokenizer {

/// White_Space.
bool is_space(char32_t character);
/// \w of Rust's regex: letters, marks, decimal digits, connectors, joiners.
bool is_word(char32_t character);
/// Any of the categories N.
bool is_numeric(char32_t character);
/// Of ASCII all that is neither letter, digit, space nor control; beyond it the categories P of Unicode 8.
bool is_punctuation(char32_t character);
/// What BertNormalizer's clean_text removes.
bool is_cleaned(char32_t character);
/// Mn of Unicode 8: what BertNormalizer's strip_accents removes from decomposed text.
bool is_nonspacing_mark(char32_t character);
/// M: what StripAccents removes.
bool is_mark(char32_t character);
/// The blocks of Chinese characters that BertNormalizer sets apart.
bool is_chinese(char32_t character);

/// Whether the Unicode version of the normal forms gives `character` the decomposition and the combining class that it has today.
bool has_old_decomposition(char32_t character);
bool has_old_combining_class(char32_t character);

/// Appends `character` in lower case: one character, or two for U+0130.
void append_lower(char32_t character, std::string& text);

}  // namespace accord::tokenizer
