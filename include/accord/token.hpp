#pragma once
// Tokens: what a tokenizer makes of text, and a language model continues.

#include <cstdint>

namespace accord {

/// A token of a vocabulary, from 0.
using TokenId = std::int32_t;

}  // namespace accord
