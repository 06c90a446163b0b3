// manifest.json of a program -> SavedProgram, and the choice of the package that a rank loads: that of the rank with
// the same places in all groups. If several ranks have these places (replicas), they must have the same weights.

#include "engine/package/program.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text.hpp"
#include "engine/graph/strict_json.hpp"
#include "engine/package/manifest_file.hpp"

namespace accord::engine {
namespace {

using nlohmann::json;

constexpr int kProgramVersion = 1;
constexpr std::int64_t kMaxProgramRanks = 1 << 20;
constexpr std::size_t kMaxParts = 1'000'000;
constexpr std::size_t kMaxReasonBytes = 1 << 16;

bool is_plain_name(std::string_view name) { return !name.starts_with('.') && name.find('/') == std::string_view::npos; }

Result<std::vector<std::string>> read_texts(const JsonObject& object, std::string_view key) {
  ACCORD_ASSIGN_OR_RETURN(const auto* items, object.array(key, kMaxParts));
  std::vector<std::string> texts;
  for (const json& item : *items) {
    ACCORD_ASSIGN_OR_RETURN(auto text, read_text(item, fmt::format("{}: {}", object.where(), key), kMaxReasonBytes));
    texts.push_back(std::move(text));
  }
  return texts;
}

Result<ProgramPart> read_part(const json& item, const std::string& where) {
  static constexpr std::array<std::string_view, 11> kKeys = {
      "name", "runs_in", "path", "sha256", "ops", "inputs", "outputs", "reasons", "collectives", "groups", "size"};
  ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, kKeys));
  ProgramPart part;
  ACCORD_ASSIGN_OR_RETURN(part.name, object.name("name"));
  ACCORD_ASSIGN_OR_RETURN(const auto runs_in, object.name("runs_in"));
  if (runs_in != "engine" && runs_in != "pytorch") {
    return object.corrupt(fmt::format("runs_in: {} is neither \"engine\" nor \"pytorch\"", quoted_text(runs_in)));
  }
  part.runs_in = runs_in == "engine" ? ProgramPart::RunsIn::kEngine : ProgramPart::RunsIn::kPyTorch;
  ACCORD_ASSIGN_OR_RETURN(part.path, object.name("path"));
  if (!is_plain_name(part.path))
    return object.corrupt(fmt::format("{} is outside the program", quoted_text(part.path)));
  ACCORD_ASSIGN_OR_RETURN(part.sha256, object.hexadecimal("sha256", 64));
  ACCORD_ASSIGN_OR_RETURN(const auto bytes, object.integer("size", 0, kMaxFileBytes));
  part.bytes = static_cast<std::uint64_t>(bytes);
  ACCORD_ASSIGN_OR_RETURN(part.ops, read_texts(object, "ops"));
  ACCORD_ASSIGN_OR_RETURN(part.reasons, read_texts(object, "reasons"));
  return part;
}

Result<ProgramRank> read_rank(const json& item, const std::string& where) {
  static constexpr std::array<std::string_view, 6> kKeys = {"groups",  "inputs",   "outputs",
                                                            "in_spec", "out_spec", "parts"};
  ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, kKeys));
  ProgramRank rank;
  if (!object.at("groups").is_object()) return object.corrupt("groups: expected an object");
  for (const auto& [name, members] : object.at("groups").items()) {
    if (!members.is_array()) return object.corrupt(fmt::format("group {}: expected an array", quoted_text(name)));
    for (const json& member : members) {
      ACCORD_ASSIGN_OR_RETURN(const auto number, read_integer(member, where + ": groups", 0, kMaxProgramRanks));
      rank.groups[name].push_back(number);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const auto* parts, object.array("parts", kMaxParts));
  for (const json& part : *parts) {
    ACCORD_ASSIGN_OR_RETURN(auto read, read_part(part, fmt::format("{}, part {}", where, rank.parts.size())));
    rank.parts.push_back(std::move(read));
  }
  return rank;
}

using Places = std::map<std::string, GroupPlace>;

std::set<std::string> group_names(const SavedProgram& program) {
  std::set<std::string> names;
  for (const ProgramRank& rank : program.ranks) {
    for (const auto& [name, members] : rank.groups) names.insert(name);
  }
  return names;
}

GroupPlace place_of(const SavedProgram& program, std::size_t rank, const std::string& group) {
  const auto found = program.ranks[rank].groups.find(group);
  if (found == program.ranks[rank].groups.end()) return {};
  const auto& members = found->second;
  const auto at = std::find(members.begin(), members.end(), static_cast<std::int64_t>(rank));
  return {static_cast<Rank>(at - members.begin()), static_cast<int>(members.size())};
}

GroupPlace given_place(const Places& places, const std::string& group) {
  const auto found = places.find(group);
  return found == places.end() ? GroupPlace{} : found->second;
}

Status wrong_places(const std::string& path, const SavedProgram& program, const Places& places) {
  std::vector<std::string> made;
  std::vector<std::string> now;
  for (const std::string& name : group_names(program)) {
    for (const ProgramRank& rank : program.ranks) {
      const auto found = rank.groups.find(name);
      if (found == rank.groups.end()) continue;
      made.push_back(fmt::format("\"{}\" of {}", name, found->second.size()));
      break;
    }
    const GroupPlace place = given_place(places, name);
    now.push_back(fmt::format("{} of {} in \"{}\"", place.rank, place.size, name));
  }
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("{} was made by {} ranks, with groups {}, and is loaded by exactly as many: this is rank {}", path,
                  program.ranks.size(), fmt::join(made, ", "), fmt::join(now, ", ")));
}

}  // namespace

bool is_program(const json& manifest) {
  return manifest.is_object() && manifest.contains("format") && manifest["format"] == kProgramFormat;
}

Result<SavedProgram> parse_program(const json& manifest) {
  static constexpr std::array<std::string_view, 5> kKeys = {"format", "format_version", "producer", "world_size",
                                                            "ranks"};
  ACCORD_ASSIGN_OR_RETURN(const auto top, JsonObject::read(manifest, std::string(kManifestName), kKeys));
  SavedProgram program;
  if (top.at("format_version") != kProgramVersion) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: format version {} of programs; this accord reads version {}: export the model again",
                              kManifestName, top.at("format_version").dump(), kProgramVersion));
  }
  program.format_version = kProgramVersion;
  ACCORD_ASSIGN_OR_RETURN(program.producer, top.text("producer", kMaxNameBytes));
  ACCORD_ASSIGN_OR_RETURN(const auto* ranks, top.array("ranks", kMaxProgramRanks));
  for (const json& item : *ranks) {
    ACCORD_ASSIGN_OR_RETURN(auto rank,
                            read_rank(item, fmt::format("{}: rank {}", kManifestName, program.ranks.size())));
    program.ranks.push_back(std::move(rank));
  }
  if (!top.at("world_size").is_null()) {
    ACCORD_ASSIGN_OR_RETURN(const auto size, top.integer("world_size", 1, kMaxProgramRanks));
    program.world_size = static_cast<int>(size);
  }
  const auto expected = static_cast<std::size_t>(program.world_size.value_or(1));
  if (program.ranks.size() == expected) return program;
  return top.corrupt(fmt::format("it has parts of {} ranks, expected {}", program.ranks.size(), expected));
}

Result<std::optional<SavedProgram>> find_program(const PackageFolder& folder) {
  ACCORD_ASSIGN_OR_RETURN(const auto text, read_manifest_text(folder));
  // A program's manifest begins with its format; a package's may be long, and is parsed elsewhere.
  if (text.text.substr(0, 64).find(kProgramFormat) == std::string::npos) return std::optional<SavedProgram>();
  const auto manifest = parse_json(text.text, kManifestName, kMaxManifestBytes);
  if (!manifest.ok() || !is_program(*manifest)) return std::optional<SavedProgram>();
  ACCORD_RETURN_IF_ERROR(text.hash_status);
  ACCORD_ASSIGN_OR_RETURN(auto program, parse_program(*manifest));
  program.sha256 = text.sha256;
  return std::optional(std::move(program));
}

Result<PartEntry> parse_part_entry(const json& given) {
  static constexpr std::array<std::string_view, 2> kKeys = {"program", "places"};
  const auto where = fmt::format("{}: part", kManifestName);
  ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(given, where, kKeys));
  PartEntry part;
  ACCORD_ASSIGN_OR_RETURN(part.program, object.hexadecimal("program", 32));
  if (!object.at("places").is_object()) return object.corrupt("places: expected an object");
  for (const auto& [group, place] : object.at("places").items()) {
    if (!place.is_array() || place.size() != 2) return object.corrupt("places: expected [rank, size]");
    ACCORD_ASSIGN_OR_RETURN(const auto size, read_integer(place[1], where, 1, kMaxProgramRanks));
    ACCORD_ASSIGN_OR_RETURN(const auto rank, read_integer(place[0], where, 0, size - 1));
    part.places[group] = {static_cast<Rank>(rank), static_cast<int>(size)};
  }
  return part;
}

Status check_part(const PartEntry& part, const Places& places) {
  for (const auto& [group, made] : part.places) {
    const GroupPlace given = given_place(places, group);
    if (made.rank == given.rank && made.size == given.size) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("it is the part of rank {} of {} in \"{}\", not of rank {} of {}", made.rank, made.size,
                              group, given.rank, given.size));
  }
  return Status();
}

Status not_a_single_engine(const SavedProgram& program) {
  std::vector<std::string> outside;
  for (const ProgramRank& rank : program.ranks) {
    for (const ProgramPart& part : rank.parts) {
      if (part.runs_in != ProgramPart::RunsIn::kPyTorch) continue;
      const std::set<std::string> ops(part.ops.begin(), part.ops.end());
      const std::string text = fmt::format("\"{}\" ({})", part.name, fmt::join(ops, ", "));
      if (std::find(outside.begin(), outside.end(), text) == outside.end()) outside.push_back(text);
    }
  }
  if (outside.empty()) {
    return Status(StatusCode::kUnsupported,
                  "a program with several parts, or with different parts for each rank, is not a single engine");
  }
  return Status(StatusCode::kUnsupported,
                fmt::format("the program has PyTorch partitions, which run in Python only: {}; load it there by "
                            "accord.load(), or export it without options: the error names what no engine can run",
                            fmt::join(outside, ", ")));
}

Status not_a_single_engine(const json& manifest) {
  ACCORD_ASSIGN_OR_RETURN(const auto program, parse_program(manifest));
  return not_a_single_engine(program);
}

Result<std::string> engine_package(const std::string& path, const Places& places) {
  ACCORD_ASSIGN_OR_RETURN(const auto folder, PackageFolder::open(path));
  ACCORD_ASSIGN_OR_RETURN(const auto program, find_program(folder));
  if (!program) return path;
  const auto is_engine = [](const ProgramRank& rank) {
    return rank.parts.size() == 1 && rank.parts.front().runs_in == ProgramPart::RunsIn::kEngine;
  };
  if (!std::all_of(program->ranks.begin(), program->ranks.end(), is_engine)) {
    return not_a_single_engine(*program).with_context(path);
  }
  const auto names = group_names(*program);
  if (program->world_size) {
    for (const auto& [name, place] : places) {
      if (!names.contains(name)) {
        return unknown_name("group", name, std::vector<std::string_view>(names.begin(), names.end()))
            .with_context(path);
      }
    }
  }
  const ProgramPart* found = nullptr;
  for (std::size_t rank = 0; rank < program->ranks.size(); ++rank) {
    const bool fits = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      const GroupPlace made = place_of(*program, rank, name), given = given_place(places, name);
      return made.rank == given.rank && made.size == given.size;
    });
    if (program->world_size && !fits) continue;
    const ProgramPart& part = program->ranks[rank].parts.front();
    if (found != nullptr && found->sha256 != part.sha256) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("{}: several ranks have these places, and their parts differ ({} and {}): load one of them", path,
                      found->path, part.path));
    }
    if (found == nullptr) found = &part;
  }
  if (found == nullptr) return wrong_places(path, *program, places);
  return path + "/" + found->path;
}

}  // namespace accord::engine
