#include "mesh/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <numeric>
#include <set>

#include "base/device_limits.hpp"
#include "base/text.hpp"
#include "base/timeout_limits.hpp"
#include "mesh/families.hpp"

namespace accord::mesh {
namespace {

constexpr std::string_view kAxes[] = {"tp", "gtp", "cp", "ep", "dp", "pp"};

/// A whole number of the config and its name.
struct Number {
  const char* name;
  int MeshConfig::*value;
  int min;
};
constexpr Number kNumbers[] = {
    {"world_size", &MeshConfig::world_size, 1},
    {"rank_offset", &MeshConfig::rank_offset, 0},
    {"tp", &MeshConfig::tp, 1},
    {"cp", &MeshConfig::cp, 1},
    {"pp", &MeshConfig::pp, 1},
    {"dp", &MeshConfig::dp, 0},
    {"gtp", &MeshConfig::gtp, 1},
    {"ep", &MeshConfig::ep, 1},
    {"etp", &MeshConfig::etp, 0},
    {"egtp", &MeshConfig::egtp, 1},
    {"optimizer_instances", &MeshConfig::optimizer_instances, 1},
};
struct Flag {
  const char* name;
  bool MeshConfig::*value;
};
constexpr Flag kFlags[] = {{"hybrid_cp", &MeshConfig::hybrid_cp},
                           {"all_gather_group", &MeshConfig::all_gather_group},
                           {"gloo_groups", &MeshConfig::gloo_groups}};
struct List {
  const char* name;
  std::vector<int> MeshConfig::*value;
};
constexpr List kLists[] = {{"hierarchical_cp", &MeshConfig::hierarchical_cp},
                           {"embedding_stages", &MeshConfig::embedding_stages},
                           {"position_embedding_stages", &MeshConfig::position_embedding_stages}};

Status check_numbers(const MeshConfig& config) {
  for (const Number& number : kNumbers) {
    const int value = config.*number.value;
    if (value >= number.min && value <= kMaxRanks) continue;
    return invalid(fmt::format("{} is {}, expected {} to {}", number.name, value, number.min, kMaxRanks));
  }
  if (config.rank_offset > kMaxRanks - config.world_size) {
    return invalid(
        fmt::format("rank_offset {} plus {} ranks exceeds {}", config.rank_offset, config.world_size, kMaxRanks));
  }
  return {};
}

// "tp * pp = 2 * 4 = 8", without factors of 1.
std::string product_text(std::span<const std::pair<const char*, int>> factors) {
  std::vector<std::string> names, sizes;
  std::int64_t product = 1;
  for (const auto& [name, size] : factors) {
    product *= size;
    if (size == 1) continue;
    names.emplace_back(name);
    sizes.push_back(std::to_string(size));
  }
  if (names.size() < 2) return names.empty() ? "1" : fmt::format("{} = {}", names.front(), product);
  return fmt::format("{} = {} = {}", fmt::join(names, " * "), fmt::join(sizes, " * "), product);
}

// The number of ranks given by the sizes of the dense layers' axes. check_numbers() reports invalid sizes.
Result<int> ranks_of_sizes(const MeshConfig& config) {
  const auto sizes = {config.tp, config.gtp, config.cp, config.pp};
  if (std::any_of(sizes.begin(), sizes.end(), [](int size) { return size < 1; })) return 1;
  if (config.dp == 0) {
    return invalid("dp has no size, so the number of ranks is unknown: give world_size (--world) or dp");
  }
  std::int64_t ranks = std::max(config.dp, 1);
  for (const int size : sizes) ranks = std::min<std::int64_t>(ranks * size, kMaxRanks + 1);
  return static_cast<int>(ranks);
}

// The number of ranks divided by `factors`.
Result<int> remaining_ranks(int world_size, std::span<const std::pair<const char*, int>> factors) {
  std::int64_t product = 1;
  for (const auto& [name, size] : factors) product *= size;
  if (product <= world_size && world_size % product == 0) return static_cast<int>(world_size / product);
  return invalid(fmt::format("{}, which does not divide the {} ranks of the mesh", product_text(factors), world_size));
}

Result<std::vector<std::string>> read_order(const MeshConfig& config) {
  std::string lower = config.order;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::vector<std::string> axes;
  for (const std::string_view word : split_text(lower, '-')) {
    const std::string_view axis = word == "gtp_remat" ? "gtp" : word;
    if (std::find(std::begin(kAxes), std::end(kAxes), axis) == std::end(kAxes)) {
      return unknown_name("axis", axis, kAxes).with_context(fmt::format("mesh: order \"{}\"", config.order));
    }
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      return invalid(fmt::format("order \"{}\" has axis {} twice", config.order, axis));
    }
    axes.emplace_back(axis);
  }
  return axes;
}

// The order with all axes. Axes that were left out have one position; gtp, if left out, follows tp.
Result<std::string> complete_order(const MeshConfig& config) {
  ACCORD_ASSIGN_OR_RETURN(std::vector<std::string> axes, read_order(config));
  const std::pair<std::string_view, int> sizes[] = {{"tp", std::max(config.tp, config.etp)},
                                                    {"cp", config.cp},
                                                    {"ep", config.ep},
                                                    {"dp", std::max(config.dp, expert_dp(config))},
                                                    {"pp", config.pp}};
  for (const auto& [axis, size] : sizes) {
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) continue;
    if (size > 1) {
      return invalid(fmt::format("{} is {}, but order \"{}\" does not contain it", axis, size, config.order));
    }
    axes.emplace_back(axis);
  }
  if (std::find(axes.begin(), axes.end(), "gtp") == axes.end()) {
    axes.insert(std::find(axes.begin(), axes.end(), "tp") + 1, "gtp");
  }
  return fmt::format("{}", fmt::join(axes, "-"));
}

// A stage covers all ranks of some rows in both grids, so that a stage's dense layers and experts are on the same
// ranks.
Status check_stages(const MeshConfig& config) {
  if (config.pp == 1) return {};
  const Grid dense(dense_axes(config), 0), experts(expert_axes(config), 0);
  const std::int64_t dense_stride = dense.digit(*dense.find("pp")).stride,
                     expert_stride = experts.digit(*experts.find("pp")).stride;
  if (dense_stride == expert_stride) return {};
  return invalid(fmt::format(
      "with order \"{}\" stages of the pipeline are {} ranks apart for dense layers and {} for experts, whose "
      "data-parallel sizes are {} and {}; put pp last, or make the sizes equal",
      config.order, dense_stride, expert_stride, config.dp, expert_dp(config)));
}

Status check_levels(const MeshConfig& config) {
  if (!config.hierarchical_cp.empty()) {
    std::int64_t product = 1;
    for (const int size : config.hierarchical_cp) {
      if (size < 1 || size > config.cp) {
        return invalid(fmt::format("hierarchical_cp has a level of {}, expected 1 to cp = {}", size, config.cp));
      }
      product *= size;
    }
    if (product != config.cp) {
      return invalid(fmt::format("hierarchical_cp is {}, which is not cp = {}",
                                 fmt::join(config.hierarchical_cp, " * "), config.cp));
    }
  }
  const int neighbours = config.dp * config.cp;
  for (const auto& [what, ranks] : {std::pair{"dp * cp", neighbours}, std::pair{"dp of experts", expert_dp(config)}}) {
    if (ranks % config.optimizer_instances == 0) continue;
    return invalid(fmt::format("optimizer_instances is {}, which does not divide {} = {}", config.optimizer_instances,
                               what, ranks));
  }
  if (!config.hybrid_cp) return {};
  const std::vector<int> sizes = hybrid_sizes(neighbours);
  if (neighbours % 2 == 0 && (sizes.empty() || neighbours % sizes.back() == 0)) return {};
  return invalid(fmt::format("hybrid_cp needs dp * cp = {} to be a multiple of {}, the largest of its groups",
                             neighbours, sizes.empty() ? 2 : sizes.back()));
}

Status check_positions(const MeshConfig& config) {
  for (const auto& [name, stages] : {std::pair{"embedding_stages", &config.embedding_stages},
                                     std::pair{"position_embedding_stages", &config.position_embedding_stages}}) {
    for (const int stage : *stages) {
      if (stage >= -config.pp && stage < config.pp) continue;
      return invalid(fmt::format("{} contains stage {}, but the pipeline has {} stages", name, stage, config.pp));
    }
  }
  return {};
}

Status check_options(const MeshConfig& config) {
  const std::vector<std::string_view> keys = option_keys();
  for (const auto& [key, options] : config.options) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return unknown_name("family", key, keys).with_context("mesh: options");
    }
    const auto invalid_option = [&, &key = key](const char* name, const auto& value, const std::string& what) {
      return invalid(fmt::format("options of \"{}\": {} is {}, expected {}", key, name, value, what));
    };
    for (const auto& [name, ctas] :
         {std::pair{"max_ctas", options.max_ctas}, std::pair{"min_ctas", options.min_ctas}}) {
      if (ctas && (*ctas < 1 || *ctas > kMaxCtas)) return invalid_option(name, *ctas, "1 to 64");
    }
    if (options.min_ctas && options.max_ctas && *options.min_ctas > *options.max_ctas) {
      return invalid_option("min_ctas", *options.min_ctas, "at most max_ctas");
    }
    if (options.cga_cluster_size && (*options.cga_cluster_size < 0 || *options.cga_cluster_size > kLargestCluster)) {
      return invalid_option("cga_cluster_size", *options.cga_cluster_size, "0 to 8");
    }
    if (options.net_name) {
      std::string lower = *options.net_name;
      std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
      if (lower != "ib" && lower != "socket")
        return invalid_option("net_name", quoted_text(*options.net_name), "\"IB\" or \"Socket\"");
    }
    if (options.timeout_seconds &&
        !(*options.timeout_seconds >= kShortestTimeout && *options.timeout_seconds <= kLongestTimeout)) {
      return invalid_option("timeout_seconds", *options.timeout_seconds,
                            fmt::format("{} to {:.0f}", kShortestTimeout, kLongestTimeout));
    }
  }
  return {};
}

std::vector<MeshAxis> axes_of(const MeshConfig& config, const std::function<int(std::string_view)>& size) {
  std::vector<MeshAxis> axes;
  for (const std::string_view axis : split_text(config.order, '-')) axes.push_back({std::string(axis), size(axis)});
  return axes;
}

Result<bool> parse_flag(std::string_view text, std::string_view name) {
  if (text == "true" || text == "1" || text == "yes") return true;
  if (text == "false" || text == "0" || text == "no") return false;
  return invalid(fmt::format("{} is {}, expected true or false", name, quoted_text(text)));
}

Result<int> parse_number(std::string_view text, std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t value, parse_integer(text, fmt::format("mesh: {}", name)));
  if (value < -kMaxRanks || value > kMaxRanks)
    return invalid(fmt::format("{} is {}, expected {} to {}", name, value, -kMaxRanks, kMaxRanks));
  return static_cast<int>(value);
}

Status set_field(MeshConfig& config, std::string_view name, std::string_view value) {
  std::vector<std::string_view> names = {"order"};
  for (const Number& number : kNumbers) {
    names.emplace_back(number.name);
    if (name != number.name) continue;
    ACCORD_ASSIGN_OR_RETURN(config.*number.value, parse_number(value, name));
    return {};
  }
  for (const Flag& flag : kFlags) {
    names.emplace_back(flag.name);
    if (name != flag.name) continue;
    ACCORD_ASSIGN_OR_RETURN(config.*flag.value, parse_flag(value, name));
    return {};
  }
  for (const List& list : kLists) {
    names.emplace_back(list.name);
    if (name != list.name) continue;
    std::vector<int> numbers;
    for (const std::string_view number : split_text(value, 'x')) {
      ACCORD_ASSIGN_OR_RETURN(numbers.emplace_back(), parse_number(number, name));
    }
    config.*list.value = std::move(numbers);
    return {};
  }
  if (name != "order") return unknown_name("axis or setting", name, names).with_context("mesh");
  config.order = std::string(value);
  return {};
}

}  // namespace

Status invalid(const std::string& why) { return Status(StatusCode::kInvalidArgument, "mesh: " + why); }

int expert_dp(const MeshConfig& config) {
  return config.world_size / (config.etp * config.egtp * config.ep * config.pp);
}

std::vector<MeshAxis> dense_axes(const MeshConfig& config) {
  return axes_of(config, [&](std::string_view axis) {
    return axis == "tp"    ? config.tp
           : axis == "gtp" ? config.gtp
           : axis == "cp"  ? config.cp
           : axis == "dp"  ? config.dp
           : axis == "pp"  ? config.pp
                           : 1;
  });
}

std::vector<MeshAxis> expert_axes(const MeshConfig& config) {
  return axes_of(config, [&](std::string_view axis) {
    return axis == "tp"    ? config.etp
           : axis == "gtp" ? config.egtp
           : axis == "ep"  ? config.ep
           : axis == "dp"  ? expert_dp(config)
           : axis == "pp"  ? config.pp
                           : 1;
  });
}

Result<MeshConfig> resolved(MeshConfig config) {
  if (config.world_size == 0) {
    ACCORD_ASSIGN_OR_RETURN(config.world_size, ranks_of_sizes(config));
  }
  ACCORD_RETURN_IF_ERROR(check_numbers(config));
  if (config.etp == 0) config.etp = config.tp;
  const std::pair<const char*, int> dense[] = {
      {"tp", config.tp}, {"gtp", config.gtp}, {"cp", config.cp}, {"pp", config.pp}};
  const std::pair<const char*, int> experts[] = {
      {"etp", config.etp}, {"egtp", config.egtp}, {"ep", config.ep}, {"pp", config.pp}};
  ACCORD_ASSIGN_OR_RETURN(const int dp, remaining_ranks(config.world_size, dense));
  ACCORD_RETURN_IF_ERROR(remaining_ranks(config.world_size, experts).status());
  if (config.dp != 0 && config.dp != dp) {
    return invalid(fmt::format("dp is {}, expected {}: the {} ranks divided by {}", config.dp, dp, config.world_size,
                               product_text(dense)));
  }
  config.dp = dp;
  ACCORD_ASSIGN_OR_RETURN(config.order, complete_order(config));
  ACCORD_RETURN_IF_ERROR(check_stages(config));
  ACCORD_RETURN_IF_ERROR(check_levels(config));
  ACCORD_RETURN_IF_ERROR(check_positions(config));
  ACCORD_RETURN_IF_ERROR(check_options(config));
  return config;
}

std::map<std::string, std::string> settings_of(const MeshGroupOptions& options) {
  std::map<std::string, std::string> settings;
  const auto add = [&](const char* name, const auto& value) {
    if (value) settings.emplace(name, fmt::format("{}", *value));
  };
  add("is_high_priority_stream", options.is_high_priority_stream);
  add("cga_cluster_size", options.cga_cluster_size);
  add("max_ctas", options.max_ctas);
  add("min_ctas", options.min_ctas);
  add("net_name", options.net_name);
  add("timeout_seconds", options.timeout_seconds);
  add("backend", options.backend);
  return settings;
}

std::string text_of(const MeshConfig& config) {
  std::string text;
  for (const Number& number : kNumbers) text += fmt::format("{}={} ", number.name, config.*number.value);
  text += fmt::format("order={}", config.order);
  for (const List& list : kLists) text += fmt::format(" {}={}", list.name, fmt::join(config.*list.value, "x"));
  for (const Flag& flag : kFlags) text += fmt::format(" {}={}", flag.name, config.*flag.value);
  for (const auto& [key, options] : config.options) {
    for (const auto& [name, value] : settings_of(options)) text += fmt::format(" {}.{}={}", key, name, value);
  }
  return text;
}

}  // namespace accord::mesh

namespace accord {

Result<MeshConfig> parse_mesh_config(std::string_view text, MeshConfig defaults) {
  std::set<std::string_view> seen;
  for (const std::string_view spaced : split_text(text, ',')) {
    const std::size_t first = std::min(spaced.find_first_not_of(' '), spaced.size());
    const std::string_view part = spaced.substr(first, spaced.find_last_not_of(' ') + 1 - first);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("mesh: {} has no value; write \"tp=8,pp=8,cp=2,ep=16\"", quoted_text(part)));
    }
    const std::string_view name = part.substr(0, equals);
    if (!seen.insert(name).second) {
      return Status(StatusCode::kInvalidArgument, fmt::format("mesh: {} appears twice", quoted_text(name)));
    }
    const int given = defaults.world_size;
    ACCORD_RETURN_IF_ERROR(mesh::set_field(defaults, name, part.substr(equals + 1)));
    if (given != 0 && defaults.world_size != given) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("mesh: the sizes set world_size={}, but {} ranks were given", defaults.world_size, given));
    }
  }
  return defaults;
}

}  // namespace accord
