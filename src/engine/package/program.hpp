#pragma once
// Saved programs: packages of several parts, engines and PyTorch partitions, or of parts that differ from rank to rank. An engine is a
// package of its own inside of the program's directory; PyTorch partitions run in Python only. docs/engine-format.md writes it down.

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
  std::string sha256;       ///< the package's identity, or of the file
  std::uint64_t bytes = 0;  ///< of the file
  std::vector<std::string> ops;
  std::vector<std::string> reasons;  ///< why it does not run in an engine
};

/// What one rank runs.
struct ProgramRank {
  std::map<std::string, std::vector<std::int64_t>> groups;  ///< members, by their ranks among all
  std::vector<ProgramPart> parts;
};

struct SavedProgram {
  int format_version = 0;
  std::string producer;
  std::string sha256;             ///< of manifest.json
  std::optional<int> world_size;  ///< none: any number of ranks, which all run ranks[0]
  std::vector<ProgramRank> ranks;
};

inline constexpr std::string_view kProgramFormat = "accord-program";

/// Whether a manifest says that it is a program's.
bool is_program(const nlohmann::json& manifest);
/// Everything but `sha256`. kCorrupt names what is wrong; kUnsupported another format version.
Result<SavedProgram> parse_program(const nlohmann::json& manifest);
/// The program in a folder; nullopt if a package is there. kCorrupt.
Result<std::optional<SavedProgram>> find_program(const PackageFolder& folder);

/// The "part" of a package's manifest. kCorrupt.
Result<PartEntry> parse_part_entry(const nlohmann::json& part);
/// kInvalidArgument unless the places are those of the part.
Status check_part(const PartEntry& part, const std::map<std::string, GroupPlace>& places);

/// kUnsupported: names the PyTorch partitions with their ops and says where they run, or that each rank has parts of its own.
Status no_single_engine(const SavedProgram& program);
Status no_single_engine(const nlohmann::json& manifest);

/// Where the package lies that a rank with these places loads: `path` itself, or the engine of a program that has one for each
/// rank. kUnsupported if there are PyTorch partitions; kInvalidArgument if the program was made by other ranks.
Result<std::string> engine_package(const std::string& path, const std::map<std::string, GroupPlace>& places);

}  // namespace accord::engine
