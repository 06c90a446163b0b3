// Stages of the pipeline are placed one below the other; in each, tensor-parallel ranks go across and all others
// down. The title of a square describes its rank; viewers show it as a tooltip.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/mesh/commands.hpp"
#include "cli/svg.hpp"

namespace accord::cli {
namespace {

constexpr double kMeshLeft = 30, kMeshTop = 60, kMeshGap = 34;

/// Returns colors that can be told apart in neighbouring groups.
std::string color_of(std::size_t group) {
  return fmt::format("hsl({}, 50%, {}%)", group * 47 % 360, 45 + group % 3 * 12);
}

std::string title_of(const MeshPlan& plan, Rank rank, const std::string& group) {
  std::string text = fmt::format("rank {}", rank);
  for (const MeshAxis& axis : plan.axes()) {
    if (axis.size > 1) text += fmt::format(", {} {}", axis.name, *plan.coordinate(axis.name, rank));
  }
  return text + "; " + group;
}

}  // namespace

std::string mesh_chart(const MeshPlan& plan, int family, Rank rank) {
  const MeshFamily& facts = plan.families()[static_cast<std::size_t>(family)];
  std::map<Rank, std::size_t> group_of;
  const std::vector<std::vector<Rank>> groups = plan.all_groups(family);
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (const Rank member : groups[i]) group_of.emplace(member, i);
  const auto size_of_axis = [&](std::string_view name) {
    for (const MeshAxis& axis : plan.axes())
      if (axis.name == name) return axis.size;
    return 1;
  };
  const int tp = size_of_axis("tp"), stages = size_of_axis("pp"), rows = plan.world_size() / tp / stages;
  const double side = std::clamp(960.0 / std::max(tp, 1), 6.0, 34.0);
  const double stage_height = rows * side + kMeshGap;
  std::map<int, std::map<int, int>> next_row;  // by stage and tensor-parallel rank
  std::string body = fmt::format("<text x=\"12\" y=\"28\" font-size=\"16\">{} ranks in the colors of {}: {}</text>\n",
                                 plan.world_size(), svg_escaped(facts.name), svg_escaped(facts.description));
  for (int stage = 0; stage < stages && stages > 1; ++stage)
    body += fmt::format("<text x=\"{}\" y=\"{:.1f}\">stage {}</text>\n", kMeshLeft, kMeshTop + stage * stage_height - 6,
                        stage);
  const std::vector<Rank> own = plan.ranks_of(family, rank);
  for (Rank at = plan.rank_offset(); at < plan.rank_offset() + plan.world_size(); ++at) {
    const int across = *plan.coordinate("tp", at), stage = *plan.coordinate("pp", at);
    const int row = next_row[stage][across]++;
    const auto group = group_of.find(at);
    const bool is_own = std::binary_search(own.begin(), own.end(), at);
    const double x = kMeshLeft + across * side, y = kMeshTop + stage * stage_height + row * side;
    body += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"{}\" "
        "stroke-width=\"{}\"><title>{}</title></rect>\n",
        x + 1, y + 1, side - 2, side - 2, group == group_of.end() ? "#e4e4e4" : color_of(group->second),
        is_own ? "#000000" : "#ffffff", is_own ? 2 : 0.5,
        svg_escaped(
            title_of(plan, at, group == group_of.end() ? "in no group" : fmt::format("group {}", group->second))));
    if (side >= 20)
      body += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"9\" text-anchor=\"middle\">{}</text>\n",
                          x + side / 2, y + side / 2 + 3, at);
  }
  const double width = std::max(kMeshLeft + tp * side + 30, 640.0);
  return svg_head(static_cast<int>(width), static_cast<int>(kMeshTop + stages * stage_height), "") + body + "</svg>\n";
}

}  // namespace accord::cli
