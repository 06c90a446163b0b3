#pragma once
// SentencePiece's table of replacements ("precompiled_charsmap").

#include <memory>

#include "base/json_node.hpp"
#include "tokenizer/normalizer.hpp"

namespace accord::tokenizer {

/// Reads {"type": "Precompiled", "precompiled_charsmap": base64}.
Result<std::unique_ptr<Normalizer>> read_precompiled(const JsonNode& node);

}  // namespace accord::tokenizer
