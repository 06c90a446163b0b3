#pragma once
// Sums over the maps of a group, for `accord moe report`.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "accord/status.hpp"
#include "expert/group_setup.hpp"
#include "expert/handle.hpp"

namespace accord::expert {

/// Sums over all maps that a group prepared. All members except the last two are equal on all ranks.
struct Report {
  std::string group;
  int size = 1;
  int experts = 0;
  int top_k = 0;
  int hidden = 0;
  int alignment = 1;
  std::int64_t max_recv_rows = 0;
  ExpertPlacement placement;
  std::int64_t prepares = 0;
  std::vector<std::int64_t> traffic;                            ///< [size, size]: rows from each rank to each rank
  std::vector<std::int64_t> loads;                              ///< [experts]: choices
  std::vector<std::int64_t> recv_rows;                          ///< [size]: padding included
  std::vector<std::int64_t> most_rows;                          ///< [size]: maximum in one map
  std::vector<std::int64_t> dropped, out_of_range, duplicates;  ///< [size]: of each rank's tokens
  Rank rank = 0;
  ExpertStatistics statistics;
};

Report start_report(const GroupSetup& setup);
/// Adds a prepared map.
void add(const Handle& handle, Report& report);

std::string to_json(const Report& report);
/// Fails with kCorrupt, which says what is wrong.
Result<Report> report_from_json(std::string_view text);

}  // namespace accord::expert
