#pragma once
// The part of manifest.json that describes a language model.

#include <nlohmann/json_fwd.hpp>

#include "engine/package/package.hpp"

namespace accord::engine {

/// Fails with kCorrupt, saying where and why. has_encoder: the package has the graph of an encoder.
Result<LanguageModelEntry> parse_language_model_entry(const nlohmann::json& entry, bool has_encoder);

}  // namespace accord::engine
