#pragma once
// GPT-2's alphabet: a printable character for each byte, so that a vocabulary of bytes can be written as text.

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace accord::tokenizer {

/// The character of each byte: itself where Latin-1 has something printable there, else one from U+0100 on.
const std::array<char32_t, 256>& byte_characters();

/// The byte that `character` stands for; nullopt if none.
std::optional<unsigned char> byte_of(char32_t character);

/// Each byte of `bytes` by its character.
std::string spelled(std::string_view bytes);

/// The bytes that `text` spells; nullopt if a character of it stands for none.
std::optional<std::string> unspelled(std::string_view text);

}  // namespace accord::tokenizer
