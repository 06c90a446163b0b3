#pragma once
// Character classes as the tokenizers library defines them. It takes them from several tables of different Unicode
// versions. Models are trained with exactly these, so each class follows its own version.

#include <string>

namespace accord::tokenizer {

/// White_Space.
bool is_space(char32_t character);
/// \w of Rust's regex: letters, marks, decimal digits, connectors and joiners.
bool is_word(char32_t character);
/// Any of the N categories.
bool is_numeric(char32_t character);
/// In ASCII, everything that is not a letter, digit, space or control character; beyond ASCII, the P categories of
/// Unicode 8.
bool is_punctuation(char32_t character);
/// Characters that BertNormalizer's clean_text removes.
bool is_cleaned(char32_t character);
/// Category Mn of Unicode 8: the characters that BertNormalizer's strip_accents removes from decomposed text.
bool is_nonspacing_mark(char32_t character);
/// Category M: the characters that StripAccents removes.
bool is_mark(char32_t character);
/// The blocks of Chinese characters that BertNormalizer surrounds with spaces.
bool is_chinese(char32_t character);

/// True if the Unicode version of the normal forms already gives `character` its current decomposition, or its
/// current combining class.
bool has_old_decomposition(char32_t character);
bool has_old_combining_class(char32_t character);

/// Appends the lower case of `character`: one character, or two for U+0130.
void append_lower(char32_t character, std::string& text);

}  // namespace accord::tokenizer
