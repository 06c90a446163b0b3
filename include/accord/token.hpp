#pragma once
// Tokens: the units into which a tokenizer divides text, and which a language model continues.

#include <cstdint>

namespace accord {

/// A token of a vocabulary, counted from 0.
using TokenId = std::int32_t;

}  // namespace accord
