#include "engine/package/program_look.hpp"

#include <fmt/format.h>

#include <map>
#include <set>

#include "base/hash.hpp"
#include "engine/package/manifest_file.hpp"

namespace accord::engine {
namespace {

using Json = nlohmann::ordered_json;

Json part_json(const ProgramPart& part) {
  std::map<std::string, int> counts;
  for (const std::string& op : part.ops) ++counts[op];
  return {{"name", part.name},
          {"runs_in", part.runs_in == ProgramPart::RunsIn::kEngine ? "engine" : "pytorch"},
          {"path", part.path},
          {"ops", counts},
          {"reasons", part.reasons}};
}

Status check_file(const PackageFolder& folder, const ProgramPart& part) {
  ACCORD_ASSIGN_OR_RETURN(const auto file, folder.file(part.path, part.bytes));
  ACCORD_ASSIGN_OR_RETURN(const auto mapping, file.map());
  mapping->expect(0, part.bytes);
  ACCORD_RETURN_IF_ERROR(mapping->populate(0, part.bytes));
  const std::string sha256 = sha256_hex(mapping->bytes());
  if (sha256 == part.sha256) return Status();
  return Status(StatusCode::kCorrupt, fmt::format("PyTorch partition \"{}\" is damaged: its SHA-256 is {}, expected {}",
                                                  part.name, sha256, part.sha256));
}

// Checks that an engine's package is the one that the program was written with.
Status check_identity(const std::string& path, const ProgramPart& part) {
  ACCORD_ASSIGN_OR_RETURN(const auto folder, PackageFolder::open(path));
  ACCORD_ASSIGN_OR_RETURN(const auto text, read_manifest_text(folder));
  if (text.sha256 == part.sha256) return Status();
  return Status(StatusCode::kCorrupt,
                fmt::format("manifest.json: it belongs to another engine: its SHA-256 is {}, expected {}", text.sha256,
                            part.sha256));
}

}  // namespace

Json program_json(const std::string& path, const SavedProgram& program) {
  Json ranks = Json::array();
  for (const ProgramRank& rank : program.ranks) {
    Json parts = Json::array();
    for (const ProgramPart& part : rank.parts) parts.push_back(part_json(part));
    ranks.push_back({{"groups", rank.groups}, {"parts", std::move(parts)}});
  }
  return {{"package", path},
          {"format_version", program.format_version},
          {"producer", program.producer},
          {"sha256", program.sha256},
          {"world_size", program.world_size ? Json(*program.world_size) : Json()},
          {"program", std::move(ranks)}};
}

Result<std::vector<Damage>> verify_program(const std::string& path, const PackageFolder& folder,
                                           const SavedProgram& program,
                                           void (*progress)(std::uint64_t, std::uint64_t)) {
  std::vector<Damage> damages;
  std::set<std::string> known = {"manifest.json", "manifest.sha256"};
  const auto note = [&](const std::string& file, const Status& status) {
    if (!status.ok()) damages.push_back({file, std::string(status.message())});
  };
  for (const ProgramRank& rank : program.ranks) {
    for (const ProgramPart& part : rank.parts) {
      if (!known.insert(part.path).second) continue;
      if (part.runs_in == ProgramPart::RunsIn::kPyTorch) {
        note(part.path, check_file(folder, part));
        continue;
      }
      const std::string engine = path + "/" + part.path;
      note(part.path, check_identity(engine, part));
      const auto inside = verify_package(engine, progress);
      if (!inside.ok()) continue;  // reported above: the identity could not be read either
      for (const Damage& damage : *inside) damages.push_back({part.path + "/" + damage.file, damage.what});
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const auto names, folder.names());
  for (const std::string& name : names) {
    if (!known.contains(name)) damages.push_back({name, "does not belong to the package"});
  }
  return damages;
}

}  // namespace accord::engine
