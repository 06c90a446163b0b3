#pragma once
// What tells of a saved program as a whole: inspecting and verifying it.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accord/package.hpp"
#include "engine/package/program.hpp"

namespace accord::engine {

/// What inspect_package() says of it.
nlohmann::ordered_json program_json(const std::string& path, const SavedProgram& program);

/// All damage in its files and in the packages of its engines.
Result<std::vector<Damage>> verify_program(const std::string& path, const PackageFolder& folder,
                                           const SavedProgram& program, void (*progress)(std::uint64_t, std::uint64_t));

}  // namespace accord::engine
