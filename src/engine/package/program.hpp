#pragma once
// Saved programs: packages of several parts (engines and PyTorch partitions), or of parts that differ from rank to
// rank. Each engine is a package inside the program's directory; PyTorch partitions run in Python only.
// docs/engine-format.md describes the format.

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "engine/package/package.hpp"
#include "engine/package/package_folder.hpp"

namespace accord::engine {

struct ProgramPart {
  enum class RunsIn : std::uint8_t { kEngine, kPyTorch };
  std::string name;  ///< "engine 0"
  RunsIn runs_in = RunsIn::kEngine;
  std::string path;         ///< of the engine's package or the partition's file, in the program's directory
  std::string sha256;       ///< the package's identity, or the file's hash
  std::uint64_t bytes = 0;  ///< of the file
  std::vector<std::string> ops;
  std::vector<std::string> reasons;  ///< why the part does not run in an engine
};

/// The program of one rank.
struct ProgramRank {
  std::map<std::string, std::vector<std::int64_t>> groups;  ///< members, by their ranks in the world
  std::vector<ProgramPart> parts;
};

struct SavedProgram {
  int format_version = 0;
  std::string producer;
  std::string sha256;             ///< of manifest.json
  std::optional<int> world_size;  ///< nullopt: any number of ranks, which all run ranks[0]
  std::vector<ProgramRank> ranks;
};

inline constexpr std::string_view kProgramFormat = "accord-program";

/// Returns true if a manifest declares itself a program's.
bool is_program(const nlohmann::json& manifest);
/// Sets everything except `sha256`. Fails with kCorrupt, naming what is wrong, or with kUnsupported for another format
/// version.
Result<SavedProgram> parse_program(const nlohmann::json& manifest);
/// Returns the program in a folder, or nullopt if the folder contains a package. Fails with kCorrupt.
Result<std::optional<SavedProgram>> find_program(const PackageFolder& folder);

/// Parses "part" of a package's manifest. Fails with kCorrupt.
Result<PartEntry> parse_part_entry(const nlohmann::json& part);
/// Fails with kInvalidArgument unless `places` are those of the part.
Status check_part(const PartEntry& part, const std::map<std::string, GroupPlace>& places);

/// Returns kUnsupported: the error names the PyTorch partitions with their ops and says where they run, or says that
/// each rank has parts of its own.
Status not_a_single_engine(const SavedProgram& program);
Status not_a_single_engine(const nlohmann::json& manifest);

/// Returns the path of the package that a rank with these places loads: `path` itself, or an engine of a program that
/// has one for each rank. Fails with kUnsupported if there are PyTorch partitions, and with kInvalidArgument if the
/// program was made by other ranks.
Result<std::string> engine_package(const std::string& path, const std::map<std::string, GroupPlace>& places);

}  // namespace accord::engine
