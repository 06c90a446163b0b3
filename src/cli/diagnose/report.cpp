#include "cli/diagnose/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "exec/domain.hpp"

namespace accord::cli {
namespace {

using nlohmann::ordered_json;

std::string_view verdict(const GroupDiagnosis& group) {
  if (!group.failures.empty()) return "failed";
  return group.someone_waits ? "waits" : "idle";
}

bool is_reportable(const GroupDiagnosis& group) {
  return group.someone_waits || !group.findings.empty() || !group.failures.empty();
}

/// Table row of a rank.
std::vector<std::string> row(const RankState& rank) {
  std::vector<std::string> cells = {std::to_string(rank.rank), std::to_string(rank.process),
                                    std::string(to_string(rank.condition))};
  if (!rank.has_log) {
    cells.insert(cells.end(), {"no record of it", "", ""});
  } else if (!rank.call) {
    cells.insert(cells.end(), {"no call yet", "", ""});
  } else {
    const std::string by = rank.call->algorithm.empty() ? "" : ", " + rank.call->algorithm;
    const std::string behind = rank.queued == 0 ? "" : fmt::format(" (and {} queued)", rank.queued);
    const std::string time = duration_text(Duration(rank.since_ns));
    cells.push_back(rank.what_call() + by + behind);
    cells.push_back(rank.waits ? "in it for " + time : fmt::format("{} {} ago", to_string(rank.call->state), time));
    cells.push_back(rank.waits && !rank.waits_for.empty() ? ranks_text(rank.waits_for) : "");
  }
  return cells;
}

std::string table(const std::vector<RankState>& ranks) {
  std::vector<std::vector<std::string>> rows = {{"rank", "process", "state", "call", "since", "waits for"}};
  for (const RankState& rank : ranks) rows.push_back(row(rank));
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& cells : rows)
    for (std::size_t c = 0; c < cells.size(); ++c) widths[c] = std::max(widths[c], cells[c].size());
  std::string text;
  for (const auto& cells : rows) {
    std::string line = " ";
    for (std::size_t c = 0; c < cells.size(); ++c) line += fmt::format(" {:<{}}", cells[c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

ordered_json to_json(const RankState& rank) {
  ordered_json call;
  if (rank.call)
    call = {{"text", rank.what_call()},
            {"kind", rank.direction == Direction::kNone   ? "collectives"
                     : rank.direction == Direction::kSend ? "send"
                                                          : "receive"},
            {"number", rank.call->number},
            {"state", to_string(rank.call->state)},
            {"collective", exec::name_of(rank.call->request)},
            {"dtype", to_string(rank.call->request.dtype)},
            {"count", rank.call->request.count},
            {"algorithm", rank.call->algorithm}};
  return {{"rank", rank.rank},
          {"process", rank.process},
          {"host", rank.host},
          {"condition", to_string(rank.condition)},
          {"has_record", rank.has_log},
          {"waits", rank.waits},
          {"call", std::move(call)},
          {"since_seconds", rank.call ? ordered_json(static_cast<double>(rank.since_ns) / 1e9) : ordered_json()},
          {"waits_for", rank.waits_for},
          {"queued", rank.queued}};
}

}  // namespace

std::string to_text(const std::vector<GroupDiagnosis>& groups) {
  std::string text;
  std::size_t quiet = 0;
  for (const GroupDiagnosis& group : groups) {
    if (!is_reportable(group)) {
      ++quiet;
      continue;
    }
    if (!text.empty()) text += "\n";
    text += fmt::format("group \"{}\" ({} rank{}): {}\n", group.name, group.ranks.size(),
                        group.ranks.size() == 1 ? "" : "s", verdict(group));
    for (const Finding& finding : group.findings) text += fmt::format("  {}\n", finding.text);
    for (const std::string& failure : group.failures) text += fmt::format("  failure of {}\n", failure);
    text += table(group.ranks);
  }
  if (quiet > 0)
    text += fmt::format("{}{} {} in which no rank waits\n", text.empty() ? "" : "\n", quiet,
                        quiet == 1 ? "communicator" : "communicators");
  return text;
}

std::string to_json(const std::vector<GroupDiagnosis>& groups) {
  ordered_json list = ordered_json::array();
  for (const GroupDiagnosis& group : groups) {
    ordered_json findings = ordered_json::array(), ranks = ordered_json::array();
    for (const Finding& finding : group.findings)
      findings.push_back({{"kind", to_string(finding.kind)}, {"ranks", finding.ranks}, {"text", finding.text}});
    for (const RankState& rank : group.ranks) ranks.push_back(to_json(rank));
    list.push_back({{"communicator", group.id},
                    {"name", group.name},
                    {"size", group.ranks.size()},
                    {"verdict", verdict(group)},
                    {"findings", std::move(findings)},
                    {"failures", group.failures},
                    {"ranks", std::move(ranks)}});
  }
  return ordered_json{{"communicators", std::move(list)}}.dump(2, ' ', false, ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace accord::cli
