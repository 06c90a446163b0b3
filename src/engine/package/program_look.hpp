#pragma once
// Inspects and verifies a saved program as a whole.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accord/package.hpp"
#include "engine/package/program.hpp"

namespace accord::engine {

/// Returns what inspect_package() returns for a program.
nlohmann::ordered_json program_json(const std::string& path, const SavedProgram& program);

/// Returns all damage in the program's files and in the packages of its engines.
Result<std::vector<Damage>> verify_program(const std::string& path, const PackageFolder& folder,
                                           const SavedProgram& program, void (*progress)(std::uint64_t, std::uint64_t));

}  // namespace accord::engine
