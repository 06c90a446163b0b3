#pragma once
// Reports where each part of a loaded engine runs and what it costs.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/runtime/loaded_engine.hpp"

namespace accord::engine {

/// Returns the symbols of `graph` with the values of `sizes`; the other symbols have their smallest value. Fails with
/// kInvalidArgument, naming the symbol, if a symbol is unknown (the error also names the nearest one) or a value is
/// out of range.
Result<SymbolValues> chosen_sizes(const Graph& graph, const std::map<std::string, std::int64_t>& sizes);

/// Returns this rank's report for `symbols`, as described in docs/cli.md. Reads the package's graph again. Cost: one
/// preparation.
Result<nlohmann::ordered_json> report_of(const LoadedEngine& engine, const SymbolValues& symbols);

}  // namespace accord::engine
