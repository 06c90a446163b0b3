#pragma once
// Where each part of a loaded engine runs, and what it takes.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/runtime/loaded_engine.hpp"

namespace accord::engine {

/// The symbols of `graph` with the values of `sizes`; the others have their smallest value.
/// kInvalidArgument names a symbol that there is not, with the nearest one, and a value out of its range.
Result<SymbolValues> chosen_sizes(const Graph& graph, const std::map<std::string, std::int64_t>& sizes);

/// This rank's report as docs/cli.md describes it, for `symbols`. Reads the package's graph again. Costs one preparation.
Result<nlohmann::ordered_json> report_of(const LoadedEngine& engine, const SymbolValues& symbols);

}  // namespace accord::engine
