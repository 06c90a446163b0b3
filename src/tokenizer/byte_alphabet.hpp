#pragma once
// GPT-2's alphabet: a printable character for each byte, so that a vocabulary of byte strings can be written as text.

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace accord::tokenizer {

/// The character of each byte: the byte itself if it is printable in Latin-1, otherwise a character from U+0100 on.
const std::array<char32_t, 256>& byte_characters();

/// Returns the byte that `character` stands for; nullopt if there is none.
std::optional<unsigned char> byte_of(char32_t character);

/// Replaces each byte of `bytes` by its character.
std::string encode_bytes(std::string_view bytes);

/// Returns the bytes that `text` spells; nullopt if one of its characters stands for no byte.
std::optional<std::string> decode_bytes(std::string_view text);

}  // namespace accord::tokenizer
