// The table of families; each row is a family of Megatron's parallel_state. Groups are cut from lines of ranks: whole
// lines, levels of lines whose positions are split into digits (hierarchical context parallelism, optimizer
// instances), or single positions (embeddings).
#include "mesh/families.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/text.hpp"

namespace accord::mesh {
namespace {

struct Row {
  const char* name;
  const char* key;
  bool of_experts;
  const char* axes;
  const char* description;
};

// In the order in which Megatron creates them.
constexpr Row kDpCp = {"dp_cp", "dp_cp", false, "dp-cp", "data parallel with context parallel"};
constexpr Row kDp = {"dp", "dp", false, "dp", "data parallel"};
constexpr Row kDpGtp = {"dp_gtp", "dp", false, "dp-gtp", "data parallel with gtp"};
constexpr Row kDpCpGtp = {"dp_cp_gtp", "dp_cp", false, "dp-cp-gtp", "data parallel with context parallel and gtp"};
constexpr Row kCp = {"cp", "cp", false, "cp", "context parallel"};
constexpr Row kGtp = {"gtp", "gtp", false, "gtp", "ranks that rebuild the weights of a tensor-parallel part together"};
constexpr Row kPp = {"pp", "pp", false, "pp", "pipeline parallel"};
constexpr Row kEdp = {"ep_dp", "ep_dp", true, "dp", "data parallel of experts"};
constexpr Row kEgtp = {"ep_gtp", "ep_gtp", true, "gtp", "gtp of experts"};
constexpr Row kModel[] = {{"mp", "mp", false, "tp-gtp-pp", "model parallel: tensor and pipeline"},
                          {"tp", "tp", false, "tp", "tensor parallel"}};
constexpr Row kJoined[] = {
    {"tp_dp_cp", "tp_dp_cp", false, "tp-dp-cp", "tensor, data and context parallel"},
    {"tp_dp", "tp_dp", false, "tp-dp", "tensor and data parallel"},
    {"tp_cp", "tp_cp", false, "tp-cp", "tensor and context parallel"},
};
constexpr Row kExperts[] = {
    {"ep", "ep", true, "ep", "expert parallel"},
    {"ep_tp", "ep_tp", true, "tp", "tensor parallel of experts"},
    {"tp_ep_mp", "tp_ep_mp", true, "tp-ep", "tensor and expert parallel"},
    {"tp_ep_pp", "tp_ep_pp", true, "tp-gtp-ep-pp", "tensor, expert and pipeline parallel of experts"},
};
// Keys of families that are cut from those above.
constexpr const char* kOtherKeys[] = {
    "intra_dp_cp", "hcp", "embd", "pos_embd", "intra_ep_dp", "inter_ep_dp", "intra_dist_opt_instance"};

std::vector<std::size_t> axes_in_grid_order(const Grid& grid, std::string_view names) {
  std::vector<std::size_t> axes;
  for (const std::string_view name : split_text(names, '-')) {
    if (const auto axis = grid.find(name)) axes.push_back(*axis);
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

class Table {
 public:
  Table(const MeshConfig& config, const Grid& dense, const Grid& experts)
      : config_(config), dense_(dense), experts_(experts) {}

  std::vector<Family> build() && {
    add_data_parallel();
    add_context_parallel();
    for (const Row& row : kModel) add(row);
    if (config_.gtp > 1) add(kGtp);
    add_pipeline();
    for (const Row& row : kJoined) add(row);
    for (const Row& row : kExperts) add(row);
    if (config_.egtp > 1) add(kEgtp);
    add_expert_data_parallel();
    return std::move(families_);
  }

 private:
  const Grid& grid_of(const Row& row) const { return row.of_experts ? experts_ : dense_; }
  Line line_of(const Row& row) const { return {grid_of(row), axes_in_grid_order(grid_of(row), row.axes)}; }

  void add(const Row& row) { add(row, row.name, row.key, {}, row.description); }
  void add(const Row& row, std::string name, std::string key, Cut cut, std::string description) {
    add(line_of(row), std::move(name), std::move(key), std::move(cut), std::move(description));
  }
  void add(Line line, std::string name, std::string key, Cut cut, std::string description) {
    const std::int64_t size = cut.kind == Cut::Kind::kWhole   ? line.size()
                              : cut.kind == Cut::Kind::kLevel ? cut.size
                                                              : static_cast<std::int64_t>(cut.positions.size());
    const std::int64_t lines = dense_.size() / line.size();
    const std::int64_t groups = cut.kind == Cut::Kind::kPositions ? lines : lines * line.size() / size;
    families_.push_back(
        {{std::move(name), std::move(key), static_cast<int>(size), static_cast<int>(groups), std::move(description)},
         std::move(line),
         std::move(cut)});
  }
  // Adds groups for tensors in host memory, with the ranks of the last family.
  void add_gloo() {
    if (!config_.gloo_groups) return;
    Family mirror = families_.back();
    mirror.facts.key = "";
    mirror.facts.name += "_gloo";
    mirror.facts.description += ", for tensors in host memory";
    families_.push_back(std::move(mirror));
  }

  static Cut level(std::int64_t size, std::int64_t stride) {
    return {.kind = Cut::Kind::kLevel, .size = size, .stride = stride};
  }

  void add_data_parallel() {
    const std::int64_t neighbours = line_of(kDpCp).size();
    const int instances = config_.optimizer_instances;
    add(kDpCp);
    add_gloo();
    if (config_.all_gather_group) {
      add(kDpCp, "dp_cp_ag", "dp_cp", {}, "second group of dp_cp, for all_gathers");
      families_.back().shares = false;
    }
    if (instances > 1) {
      add(kDpCp, "intra_dp_cp", "intra_dp_cp", level(neighbours / instances, 1), "dp_cp within an optimizer instance");
      add_gloo();
    }
    if (config_.hybrid_cp) {
      for (const int size : hybrid_sizes(neighbours)) {
        add(kDpCp, fmt::format("hybrid_dp_cp_{}", size), "dp_cp", level(size, 1),
            fmt::format("{} neighbours of dp_cp", size));
      }
    }
    add(kDp);
    add_gloo();
    if (config_.gtp > 1) {
      add(kDpGtp);
      add(kDpCpGtp);
    }
  }

  void add_context_parallel() {
    add(kCp);
    std::int64_t stride = 1;
    for (std::size_t i = 0; i < config_.hierarchical_cp.size(); ++i) {
      const int size = config_.hierarchical_cp[i];
      add(kCp, fmt::format("hcp_{}", i), "hcp", level(size, stride), fmt::format("level {} of context parallel", i));
      stride *= size;
    }
  }

  void add_pipeline() {
    add(kPp);
    const auto at = [&](const std::vector<int>& stages) {
      std::set<std::int64_t> positions;
      for (const int stage : stages) positions.insert(stage < 0 ? config_.pp + stage : stage);
      return Cut{.kind = Cut::Kind::kPositions, .positions = {positions.begin(), positions.end()}};
    };
    if (!config_.embedding_stages.empty()) {
      add(kPp, "embd", "embd", at(config_.embedding_stages), "stages with word embeddings");
    }
    if (!config_.position_embedding_stages.empty()) {
      add(kPp, "pos_embd", "pos_embd", at(config_.position_embedding_stages), "stages with position embeddings");
    }
  }

  void add_expert_data_parallel() {
    const std::int64_t replicas = line_of(kEdp).size();
    const int instances = config_.optimizer_instances;
    add(kEdp);
    add_gloo();
    if (instances > 1) {
      add(kEdp, "intra_ep_dp", "intra_ep_dp", level(replicas / instances, 1), "ep_dp within an optimizer instance");
      add_gloo();
      add(kEdp, "inter_ep_dp", "inter_ep_dp", level(instances, replicas / instances), "ep_dp across the instances");
    }
    // Data parallel comes last, so that neighbours are whole replicas of the model.
    std::vector<std::size_t> axes(experts_.axes().size());
    std::iota(axes.begin(), axes.end(), std::size_t{0});
    const std::size_t dp = *experts_.find("dp");
    std::stable_partition(axes.begin(), axes.end(), [&](std::size_t axis) { return axis != dp; });
    add(Line(experts_, axes), "intra_dist_opt_instance", "intra_dist_opt_instance",
        level(experts_.size() / instances, 1), "all ranks of a distributed optimizer instance");
  }

  const MeshConfig& config_;
  const Grid& dense_;
  const Grid& experts_;
  std::vector<Family> families_;
};

std::vector<Rank> sorted(std::vector<Rank> ranks) {
  if (!std::is_sorted(ranks.begin(), ranks.end())) std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// The group of a line that contains `position`.
std::vector<Rank> cut_at(const Family& family, Rank rank, std::int64_t position) {
  const Cut& cut = family.cut;
  std::vector<Rank> ranks;
  switch (cut.kind) {
    case Cut::Kind::kWhole:
      for (std::int64_t i = 0; i < family.line.size(); ++i) ranks.push_back(family.line.at(i, rank));
      break;
    case Cut::Kind::kLevel: {
      const std::int64_t first = position - position / cut.stride % cut.size * cut.stride;
      for (std::int64_t i = 0; i < cut.size; ++i) ranks.push_back(family.line.at(first + i * cut.stride, rank));
      break;
    }
    case Cut::Kind::kPositions:
      for (const std::int64_t at : cut.positions) ranks.push_back(family.line.at(at, rank));
      break;
  }
  return sorted(std::move(ranks));
}

}  // namespace

std::vector<int> hybrid_sizes(std::int64_t neighbours) {
  std::vector<int> sizes;
  for (std::int64_t size = 2; 2 * size <= neighbours; size *= 2) sizes.push_back(static_cast<int>(size));
  return sizes;
}

std::vector<Rank> Family::ranks_of(Rank rank) const {
  const std::int64_t position = line.position(rank);
  const bool is_in_none =
      cut.kind == Cut::Kind::kPositions && !std::binary_search(cut.positions.begin(), cut.positions.end(), position);
  return is_in_none ? std::vector<Rank>() : cut_at(*this, rank, position);
}

std::vector<std::vector<Rank>> Family::all_groups() const {
  std::vector<std::vector<Rank>> groups;
  for (const Rank first : line.firsts()) {
    if (cut.kind != Cut::Kind::kLevel) {
      groups.push_back(cut_at(*this, first, 0));
      continue;
    }
    for (std::int64_t outer = 0; outer < line.size(); outer += cut.size * cut.stride) {
      for (std::int64_t inner = 0; inner < cut.stride; ++inner) groups.push_back(cut_at(*this, first, outer + inner));
    }
  }
  return groups;
}

std::vector<Family> families_of(const MeshConfig& config, const Grid& dense, const Grid& experts) {
  return Table(config, dense, experts).build();
}

Family family_along(const Grid& grid, const std::vector<std::string>& axes) {
  const std::vector<std::size_t> in_order = axes_in_grid_order(grid, fmt::format("{}", fmt::join(axes, "-")));
  std::vector<std::string> names;
  names.reserve(in_order.size());
  for (const std::size_t axis : in_order) names.push_back(grid.axes()[axis].name);
  Line line(grid, in_order);
  const std::string name = fmt::format("{}", fmt::join(names, "-"));
  const auto size = static_cast<int>(line.size());
  return {{name, name, size, static_cast<int>(grid.size()) / size, fmt::format("along {}", fmt::join(names, ", "))},
          std::move(line),
          {}};
}

std::vector<std::string_view> option_keys() {
  std::vector<std::string_view> keys = {kDpCp.key, kDp.key, kCp.key, kGtp.key, kPp.key, kEdp.key, kEgtp.key};
  for (const Row& row : kModel) keys.emplace_back(row.key);
  for (const Row& row : kJoined) keys.emplace_back(row.key);
  for (const Row& row : kExperts) keys.emplace_back(row.key);
  keys.insert(keys.end(), std::begin(kOtherKeys), std::end(kOtherKeys));
  return keys;
}

}  // namespace accord::mesh
