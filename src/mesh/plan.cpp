#include "mesh/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "mesh/config.hpp"

namespace accord {
namespace mesh {

Plan::Plan(Grid dense, Grid experts, std::vector<Family> families, std::map<std::string, MeshGroupOptions> options,
           std::string text)
    : dense_(std::move(dense)),
      experts_(std::move(experts)),
      families_(std::move(families)),
      options_(std::move(options)),
      text_(std::move(text)) {
  for (const Family& family : families_) facts_.push_back(family.facts);
}

const MeshGroupOptions& Plan::options_of(const Family& family) const {
  static const MeshGroupOptions none;
  const auto found = options_.find(family.facts.key);
  return found == options_.end() ? none : found->second;
}

namespace {

Status check_axes(std::span<const MeshAxis> axes, int rank_offset) {
  std::set<std::string_view> names;
  std::int64_t ranks = 1;
  if (axes.empty()) return invalid("there is no axis");
  for (const MeshAxis& axis : axes) {
    if (axis.name.empty() || axis.name.find_first_of("-,= ") != std::string::npos) {
      return invalid(fmt::format("{} is not a valid name of an axis", quoted_text(axis.name)));
    }
    if (!names.insert(axis.name).second) return invalid(fmt::format("axis \"{}\" appears twice", axis.name));
    if (axis.size < 1 || axis.size > kMaxRanks) {
      return invalid(fmt::format("axis \"{}\" has {} positions, expected 1 to {}", axis.name, axis.size, kMaxRanks));
    }
    ranks *= axis.size;
    if (ranks > kMaxRanks) return invalid(fmt::format("the axes have more than {} ranks", kMaxRanks));
  }
  if (rank_offset >= 0 && rank_offset <= kMaxRanks - ranks) return {};
  return invalid(fmt::format("rank_offset is {}, expected 0 to {}", rank_offset, kMaxRanks - ranks));
}

}  // namespace
}  // namespace mesh

Result<MeshPlan> MeshPlan::create(MeshConfig given) {
  ACCORD_ASSIGN_OR_RETURN(const MeshConfig config, mesh::resolved(std::move(given)));
  mesh::Grid dense(mesh::dense_axes(config), config.rank_offset);
  mesh::Grid experts(mesh::expert_axes(config), config.rank_offset);
  std::vector<mesh::Family> families = mesh::families_of(config, dense, experts);
  return MeshPlan(std::make_shared<const mesh::Plan>(std::move(dense), std::move(experts), std::move(families),
                                                     config.options, mesh::text_of(config)));
}

Result<MeshPlan> MeshPlan::of_axes(std::span<const MeshAxis> axes, std::span<const std::vector<std::string>> families,
                                   int rank_offset) {
  ACCORD_RETURN_IF_ERROR(mesh::check_axes(axes, rank_offset));
  const mesh::Grid grid({axes.begin(), axes.end()}, rank_offset);
  std::vector<std::string_view> names;
  std::string text = fmt::format("rank_offset={}", rank_offset);
  for (const MeshAxis& axis : axes) {
    names.emplace_back(axis.name);
    text += fmt::format(" {}={}", axis.name, axis.size);
  }
  std::vector<mesh::Family> found;
  for (const std::vector<std::string>& along : families) {
    std::set<std::string_view> seen;
    for (const std::string& axis : along) {
      if (!grid.find(axis)) return unknown_name("axis", axis, names).with_context("mesh");
      if (!seen.insert(axis).second) return mesh::invalid(fmt::format("a family contains axis \"{}\" twice", axis));
    }
    if (along.empty()) return mesh::invalid("a family contains no axis");
    found.push_back(mesh::family_along(grid, along));
    const std::string& name = found.back().facts.name;
    const auto is_same = [&](const mesh::Family& family) { return family.facts.name == name; };
    if (std::count_if(found.begin(), found.end(), is_same) > 1) {
      return mesh::invalid(fmt::format("family \"{}\" appears twice", name));
    }
    text += fmt::format(" family {}", name);
  }
  return MeshPlan(std::make_shared<const mesh::Plan>(grid, grid, std::move(found),
                                                     std::map<std::string, MeshGroupOptions>(), std::move(text)));
}

int MeshPlan::world_size() const { return static_cast<int>(plan_->dense().size()); }
int MeshPlan::rank_offset() const { return plan_->dense().first_rank(); }
std::span<const MeshFamily> MeshPlan::families() const { return plan_->facts(); }
std::span<const MeshAxis> MeshPlan::axes() const { return plan_->dense().axes(); }
std::span<const MeshAxis> MeshPlan::expert_axes() const { return plan_->experts().axes(); }
const std::string& MeshPlan::text() const { return plan_->text(); }
std::uint64_t MeshPlan::hash() const { return xxh3(std::as_bytes(std::span(plan_->text()))); }

Result<int> MeshPlan::family(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const MeshFamily& one : families()) {
    if (one.name == name) return static_cast<int>(names.size());
    names.emplace_back(one.name);
  }
  return Status(StatusCode::kNotFound, unknown_name("family", name, names).message());
}

std::vector<Rank> MeshPlan::ranks_of(int family, Rank rank) const {
  return plan_->families()[static_cast<std::size_t>(family)].ranks_of(rank);
}

std::vector<std::vector<Rank>> MeshPlan::all_groups(int family) const {
  return plan_->families()[static_cast<std::size_t>(family)].all_groups();
}

std::vector<MeshGroup> MeshPlan::groups_of(Rank rank) const {
  std::vector<MeshGroup> groups;
  for (int i = 0; i < static_cast<int>(plan_->families().size()); ++i) {
    const mesh::Family& family = plan_->families()[static_cast<std::size_t>(i)];
    std::vector<Rank> ranks = family.ranks_of(rank);
    if (ranks.empty()) continue;
    const MeshGroupOptions& options = plan_->options_of(family);
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const MeshGroup& group) {
      const bool shares = plan_->families()[static_cast<std::size_t>(group.families.front())].shares;
      return shares && group.options == options && group.ranks == ranks;
    });
    if (family.shares && same != groups.end()) {
      same->families.push_back(i);
    } else {
      groups.push_back({{i}, std::move(ranks), options});
    }
  }
  return groups;
}

Result<int> MeshPlan::coordinate(std::string_view axis, Rank rank) const {
  const bool of_experts = axis == "etp" || axis == "egtp" || axis == "edp" || axis == "ep";
  const mesh::Grid& grid = of_experts ? plan_->experts() : plan_->dense();
  const std::string_view name = axis == "etp" || axis == "egtp" || axis == "edp" ? axis.substr(1) : axis;
  const auto found = grid.find(name);
  if (found) return static_cast<int>(grid.coordinate(*found, rank));
  std::vector<std::string_view> names;
  for (const MeshAxis& one : grid.axes()) names.emplace_back(one.name);
  return Status(StatusCode::kNotFound, unknown_name("axis", axis, names).message());
}

}  // namespace accord
