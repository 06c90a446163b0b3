#include "cli/diagnose/evidence.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/fd.hpp"
#include "flight/dump.hpp"

namespace accord::cli {
namespace {

namespace fs = std::filesystem;

/// Returns the dumps in a directory, sorted by name; a path that is not a directory is returned as it is.
Result<std::vector<std::string>> files_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector{path};
  std::vector<std::string> files;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("accord-") && name.ends_with(".json")) files.push_back(entry->path().string());
  }
  if (error) return errno_status(error.value(), path);
  if (files.empty())
    return Status(StatusCode::kNotFound, fmt::format("{}: the directory contains no dump (accord-*.json)", path));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string_view to_string(Condition condition) {
  switch (condition) {
    case Condition::kNotKnown: return "not known";
    case Condition::kRunning: return "running";
    case Condition::kStopped: return "stopped";
    case Condition::kGone: return "gone";
    case Condition::kLeft: return "left";
    case Condition::kElsewhere: return "elsewhere";
    case Condition::kHidden: return "hidden";
  }
  return "";
}

std::vector<GroupEvidence> group_by_communicator(std::vector<FlightLog> logs) {
  std::map<std::string, std::size_t> places;
  std::vector<GroupEvidence> groups;
  for (FlightLog& log : logs) {
    const auto [place, is_new] = places.emplace(log.id, groups.size());
    if (is_new) {
      GroupEvidence group{.id = log.id, .name = log.name, .ranks = {}};
      for (const flight::Peer& peer : log.peers)
        group.ranks.push_back({.log = {}, .process = peer.process, .host = peer.host});
      groups.push_back(std::move(group));
    }
    RankEvidence& rank = groups[place->second].ranks.at(static_cast<std::size_t>(log.rank));
    if (!rank.log || rank.log->taken_unix_ns <= log.taken_unix_ns) rank.log = std::move(log);
  }
  return groups;
}

Result<std::vector<FlightLog>> read_dumps(const std::vector<std::string>& paths) {
  std::vector<FlightLog> logs;
  std::map<std::string, std::pair<int, std::string>> sizes;  // by communicator: ranks, and the file that says so
  for (const std::string& path : paths) {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> files, files_of(path));
    for (const std::string& file : files) {
      ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(file));
      Result<FlightLog> log = flight::flight_log_from_json(text);
      if (!log.ok()) return log.status().with_context(file);
      const auto& [size, first] = sizes.try_emplace(log->id, log->size(), file).first->second;
      if (size != log->size())
        return Status(StatusCode::kCorrupt, fmt::format("{} has {} ranks, but {} has {} for the same communicator",
                                                        file, log->size(), first, size));
      logs.push_back(*std::move(log));
    }
  }
  return logs;
}

Status write_dumps(const std::vector<GroupEvidence>& groups, const std::string& directory) {
  for (const GroupEvidence& group : groups)
    for (const RankEvidence& rank : group.ranks)
      if (rank.log) ACCORD_RETURN_IF_ERROR(flight::write_dump(*rank.log, directory).status());
  return {};
}

}  // namespace accord::cli
