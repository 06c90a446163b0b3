// `accord mesh`: collects its subcommands, and formats lists of ranks.
#include "cli/mesh/commands.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accord::cli {

void add_mesh(CLI::App& app, Action& chosen) {
  CLI::App* mesh = app.add_subcommand("mesh", "Inspect the process groups of a job before it runs");
  mesh->require_subcommand(0, 1);
  add_mesh_show(*mesh, chosen);
}

std::string mesh_ranks_text(const std::vector<Rank>& ranks) {
  constexpr std::size_t kMaxShownRanks = 8;
  if (ranks.empty()) return "none";
  const Rank step = ranks.size() > 1 ? ranks[1] - ranks[0] : 1;
  const auto uneven =
      std::adjacent_find(ranks.begin(), ranks.end(), [&](Rank a, Rank b) { return b - a != step; }) != ranks.end();
  if (ranks.size() > 2 && !uneven)
    return fmt::format("{}-{}{}", ranks.front(), ranks.back(), step == 1 ? "" : fmt::format(" by {}", step));
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMaxShownRanks); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return ranks.size() > kMaxShownRanks ? text + fmt::format(" and {} more", ranks.size() - kMaxShownRanks) : text;
}

}  // namespace accord::cli
