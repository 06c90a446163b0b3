// Writing and reading share one table of the report's lists.
#include "expert/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/json_node.hpp"
#include "base/rounding.hpp"
#include "expert/config.hpp"

namespace accord::expert {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "expert report";
constexpr int kVersion = 1;
constexpr int kMaxRanks = 1 << 16;

struct ListField {
  std::string_view name;
  std::vector<std::int64_t> Report::*list;
  enum Length { kRanks, kSquare, kExperts } length;
};
constexpr std::array<ListField, 7> kLists = {{{"traffic", &Report::traffic, ListField::kSquare},
                                              {"loads", &Report::loads, ListField::kExperts},
                                              {"recv_rows", &Report::recv_rows, ListField::kRanks},
                                              {"most_rows", &Report::most_rows, ListField::kRanks},
                                              {"dropped", &Report::dropped, ListField::kRanks},
                                              {"out_of_range", &Report::out_of_range, ListField::kRanks},
                                              {"duplicates", &Report::duplicates, ListField::kRanks}}};

std::size_t length_of(const ListField& field, const Report& report) {
  const auto size = static_cast<std::size_t>(report.size);
  if (field.length == ListField::kExperts) return static_cast<std::size_t>(report.experts);
  return field.length == ListField::kSquare ? size * size : size;
}

constexpr std::array<std::pair<std::string_view, std::int64_t ExpertStatistics::*>, 5> kCounts = {
    {{"calls", &ExpertStatistics::calls},
     {"rows_sent", &ExpertStatistics::rows_sent},
     {"rows_received", &ExpertStatistics::rows_received},
     {"bytes_sent", &ExpertStatistics::bytes_sent},
     {"bytes_received", &ExpertStatistics::bytes_received}}};

Result<std::int64_t> read_count(const JsonNode& node) {
  if (node.json().is_number_integer() && node.json().get<std::int64_t>() >= 0) return node.json().get<std::int64_t>();
  return node.error("expected a non-negative integer");
}

Result<std::int64_t> count_at(const JsonNode& root, std::string_view key) {
  ACCORD_ASSIGN_OR_RETURN(const JsonNode node, root.required(key));
  return read_count(node);
}

Result<int> number_at(const JsonNode& root, std::string_view key, int min, int max) {
  ACCORD_ASSIGN_OR_RETURN(const JsonNode node, root.required(key));
  return node.integer(min, max);
}

/// Reads a list of `length` items. `read` returns the value of an item.
template <typename T, typename Read>
Result<std::vector<T>> list_at(const JsonNode& root, std::string_view key, std::size_t length, Read read) {
  ACCORD_ASSIGN_OR_RETURN(const JsonNode node, root.required(key));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, node.items());
  if (items.size() != length) return node.error(fmt::format("has {} items, expected {}", items.size(), length));
  std::vector<T> list;
  for (const JsonNode& item : items) {
    ACCORD_ASSIGN_OR_RETURN(list.emplace_back(), read(item));
  }
  return list;
}

}  // namespace

Report start_report(const GroupSetup& setup) {
  const ExpertGroupConfig& config = setup.config;
  Report report;
  report.group = setup.communicator.name();
  report.size = setup.size();
  report.experts = config.experts;
  report.top_k = config.top_k;
  report.hidden = config.hidden;
  report.alignment = config.alignment;
  report.max_recv_rows = config.max_recv_rows;
  report.placement = config.placement;
  report.rank = setup.rank();
  report.statistics.wait_seconds.resize(to_size(report.size));
  for (const ListField& field : kLists) (report.*field.list).resize(length_of(field, report));
  return report;
}

void add(const Handle& handle, Report& report) {
  const auto add_list = [](const std::vector<std::int64_t>& from, std::vector<std::int64_t>& to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  ++report.prepares;
  add_list(handle.traffic, report.traffic);
  add_list(handle.loads, report.loads);
  for (std::size_t r = 0; r < report.recv_rows.size(); ++r) {
    const ExpertRankCounts& counts = handle.routing.ranks[r];
    report.recv_rows[r] += counts.recv_rows;
    report.most_rows[r] = std::max(report.most_rows[r], counts.recv_rows);
    report.dropped[r] += counts.dropped;
    report.out_of_range[r] += counts.out_of_range;
    report.duplicates[r] += counts.duplicates;
  }
}

std::string to_json(const Report& report) {
  Json json = {{"format", "accord expert report"},
               {"version", kVersion},
               {"group", report.group},
               {"rank", report.rank},
               {"size", report.size},
               {"experts", report.experts},
               {"top_k", report.top_k},
               {"hidden", report.hidden},
               {"alignment", report.alignment},
               {"max_recv_rows", report.max_recv_rows},
               {"placement", report.placement},
               {"prepares", report.prepares}};
  for (const ListField& field : kLists) json[std::string(field.name)] = report.*field.list;
  for (const auto& [name, count] : kCounts) json[std::string(name)] = report.statistics.*count;
  json["wait_seconds"] = report.statistics.wait_seconds;
  return json.dump() + "\n";
}

Result<Report> report_from_json(std::string_view text) {
  ACCORD_ASSIGN_OR_RETURN(const JsonTree tree, JsonTree::parse(text, kFormat));
  const JsonNode root = tree.root();
  ACCORD_ASSIGN_OR_RETURN(const JsonNode format, root.required("format"));
  if (format.json() != "accord expert report") return format.error("this is not a report of an expert group");
  ACCORD_ASSIGN_OR_RETURN(const int version, number_at(root, "version", 1, 1 << 20));
  if (version != kVersion)
    return root.error(fmt::format("version {} is not supported, expected {}", version, kVersion));
  Report report;
  ACCORD_ASSIGN_OR_RETURN(const JsonNode group, root.required("group"));
  ACCORD_ASSIGN_OR_RETURN(report.group, group.name());
  ACCORD_ASSIGN_OR_RETURN(report.size, number_at(root, "size", 1, kMaxRanks));
  ACCORD_ASSIGN_OR_RETURN(report.rank, number_at(root, "rank", 0, report.size - 1));
  ACCORD_ASSIGN_OR_RETURN(report.experts, number_at(root, "experts", 1, kMaxExperts));
  ACCORD_ASSIGN_OR_RETURN(report.top_k, number_at(root, "top_k", 1, report.experts));
  ACCORD_ASSIGN_OR_RETURN(report.hidden, number_at(root, "hidden", 1, 1 << 30));
  ACCORD_ASSIGN_OR_RETURN(report.alignment, number_at(root, "alignment", 1, 1 << 24));
  ACCORD_ASSIGN_OR_RETURN(report.max_recv_rows, count_at(root, "max_recv_rows"));
  ACCORD_ASSIGN_OR_RETURN(report.prepares, count_at(root, "prepares"));
  const auto ranks = static_cast<std::size_t>(report.size);
  const auto read_own = [&](const JsonNode& list) -> Result<std::vector<int>> {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<JsonNode> items, list.items());
    std::vector<int> own;
    for (const JsonNode& item : items) {
      ACCORD_ASSIGN_OR_RETURN(own.emplace_back(), item.integer(0, report.experts - 1));
    }
    return own;
  };
  ACCORD_ASSIGN_OR_RETURN(report.placement, list_at<std::vector<int>>(root, "placement", ranks, read_own));
  std::vector<bool> is_placed(static_cast<std::size_t>(report.experts));
  for (const std::vector<int>& own : report.placement)
    for (const int expert : own) is_placed[static_cast<std::size_t>(expert)] = true;
  if (const auto missing = std::find(is_placed.begin(), is_placed.end(), false); missing != is_placed.end())
    return root.error(fmt::format("placement: no rank has expert {}", missing - is_placed.begin()));
  for (const ListField& field : kLists) {
    ACCORD_ASSIGN_OR_RETURN(report.*field.list,
                            list_at<std::int64_t>(root, field.name, length_of(field, report), read_count));
  }
  for (const auto& [name, count] : kCounts) {
    ACCORD_ASSIGN_OR_RETURN(report.statistics.*count, count_at(root, name));
  }
  ACCORD_ASSIGN_OR_RETURN(report.statistics.wait_seconds,
                          list_at<double>(root, "wait_seconds", ranks, [](const JsonNode& node) -> Result<double> {
                            if (node.json().is_number() && node.json().get<double>() >= 0)
                              return node.json().get<double>();
                            return node.error("expected a non-negative number");
                          }));
  return report;
}

}  // namespace accord::expert
