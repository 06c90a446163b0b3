// `accord mesh show`: prints the grids, the families and their groups, or compares two configurations.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/mesh/commands.hpp"
#include "cli/mesh/estimates.hpp"
#include "cli/mesh_grid_text.hpp"
#include "cli/number_checks.hpp"
#include "cli/plan/commands.hpp"
#include "comm/internal.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

struct MeshShowOptions {
  std::string sizes;
  int world = 0;
  int rank = -1;
  std::string family;
  std::string check;
  std::string chart;
  std::string machine;  // simulate calls on it
  std::string collective = "all_reduce";
  std::string bytes = "64M";
  bool all = false;
  bool as_json = false;
};

Result<MeshPlan> plan_of(const std::string& sizes, int world) {
  ACCORD_ASSIGN_OR_RETURN(MeshConfig config, parse_mesh_config(sizes, {.world_size = world}));
  return MeshPlan::create(std::move(config));
}

/// Calls of the families on a machine, if one was given.
struct Estimates {
  MeshCall call;
  std::vector<std::optional<FamilySeconds>> families;  ///< empty: no machine
};

Result<Estimates> estimates_of(const MeshPlan& plan, Rank rank, const MeshShowOptions& options) {
  Estimates estimates;
  if (options.machine.empty()) return estimates;
  ACCORD_ASSIGN_OR_RETURN(estimates.call.collective, collective_from_string(options.collective));
  ACCORD_ASSIGN_OR_RETURN(estimates.call.bytes, parse_bytes(options.bytes));
  ACCORD_ASSIGN_OR_RETURN(const sim::Machine machine, sim::read_machine(options.machine));
  ACCORD_ASSIGN_OR_RETURN(estimates.families, estimate_families(plan, rank, estimates.call, machine));
  return estimates;
}

std::string call_text(const MeshCall& call) {
  if (call.collective == Collective::kBarrier) return "barrier";
  return fmt::format("{} of {}", to_string(call.collective), bytes_text(call.bytes));
}

/// The cost of creating and keeping the groups.
struct Costs {
  std::int64_t new_group_calls = 0;  ///< that torch.distributed would make on every rank
  std::int64_t exchanged_bytes = 0;  ///< in the single step of Mesh::create()
  std::size_t window_bytes = 0;      ///< address space for the groups of a rank
  int groups = 0;                    ///< of the rank, counted by family
  int distinct = 0;                  ///< with different ranks or options
  int connected = 0;                 ///< those of them with more than one rank
};

Costs costs_of(const MeshPlan& plan, Rank rank) {
  constexpr std::int64_t kTextOfRank = 2561;
  const std::size_t slot_bytes = GroupHints().slot_bytes;
  Costs costs;
  costs.exchanged_bytes = plan.world_size() * kTextOfRank;
  for (const MeshFamily& family : plan.families()) {
    costs.new_group_calls += family.groups;
    if (family.group_size > 1) costs.window_bytes += comm::SharedGroups::bytes(family.group_size, slot_bytes);
  }
  for (const MeshGroup& group : plan.groups_of(rank)) {
    costs.groups += static_cast<int>(group.families.size());
    ++costs.distinct;
    if (group.ranks.size() > 1) ++costs.connected;
  }
  return costs;
}

std::string names_of(const MeshPlan& plan, const std::vector<int>& families) {
  std::string names;
  for (const int family : families)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", plan.families()[static_cast<std::size_t>(family)].name);
  return names;
}

std::string table_of(const MeshPlan& plan, const Estimates& estimates) {
  const bool has_times = !estimates.families.empty();
  std::string text = fmt::format("{:<26}{:>8}{:>8}", "family", "groups", "size");
  text += has_times ? fmt::format("{:>12}{:>12}\n", "alone", "together") : "  \n";
  for (std::size_t i = 0; i < plan.families().size(); ++i) {
    const MeshFamily& family = plan.families()[i];
    text += fmt::format("{:<26}{:>8}{:>8}", family.name, family.groups, family.group_size);
    if (has_times) {
      const std::optional<FamilySeconds>& seconds = estimates.families[i];
      text += fmt::format("{:>12}{:>12}", seconds ? time_text(seconds->alone) : "-",
                          seconds ? time_text(seconds->together) : "-");
    }
    text += fmt::format("  {}\n", family.description);
  }
  if (has_times)
    text += fmt::format(
        "\nalone: {} of one group; together: while the family's other groups on its hosts do the same\n"
        "-: groups of one rank, and calls of more than {} ranks\n",
        call_text(estimates.call), kMostEstimatedRanks);
  return text;
}

std::string text_of(const MeshPlan& plan, Rank rank, const Estimates& estimates, const MeshShowOptions& options) {
  const Costs costs = costs_of(plan, rank);
  std::string text = fmt::format("{} ranks{}\n", plan.world_size(),
                                 plan.rank_offset() > 0 ? fmt::format(" from rank {} on", plan.rank_offset()) : "");
  text += fmt::format("dense layers  {}\n", mesh_grid_text(plan.axes()));
  text += fmt::format("experts       {}\n\n", mesh_grid_text(plan.expert_axes()));
  text += table_of(plan, estimates);
  text += fmt::format("\nrank {} is in {} groups of {} distinct sets of ranks, {} of them with more than one rank:\n",
                      rank, costs.groups, costs.distinct, costs.connected);
  for (const MeshGroup& group : plan.groups_of(rank))
    text += fmt::format("  {:<32} {:>6} {}: {}\n", names_of(plan, group.families), group.ranks.size(),
                        group.ranks.size() == 1 ? "rank" : "ranks", mesh_ranks_text(group.ranks));
  text += fmt::format(
      "\nstart-up: one exchange of {} in total, where torch.distributed makes {} new_group calls on every rank\n"
      "memory: {} of address space on each rank, whose pages use memory once they are touched\n",
      bytes_text(static_cast<std::size_t>(costs.exchanged_bytes)), costs.new_group_calls,
      bytes_text(costs.window_bytes));
  for (std::size_t i = 0; i < plan.families().size(); ++i) {
    const MeshFamily& family = plan.families()[i];
    if (!options.all && family.name != options.family) continue;
    text += fmt::format("\n{}:\n", family.name);
    for (const std::vector<Rank>& group : plan.all_groups(static_cast<int>(i)))
      text += fmt::format("  {}\n", mesh_ranks_text(group));
  }
  return text;
}

Json json_of(const MeshPlan& plan, Rank rank, const Estimates& estimates, const MeshShowOptions& options) {
  const Costs costs = costs_of(plan, rank);
  const auto axes = [](std::span<const MeshAxis> given) {
    Json json = Json::object();
    for (const MeshAxis& axis : given) json[axis.name] = axis.size;
    return json;
  };
  Json json = {{"world_size", plan.world_size()},
               {"rank_offset", plan.rank_offset()},
               {"axes", axes(plan.axes())},
               {"expert_axes", axes(plan.expert_axes())},
               {"families", Json::array()},
               {"rank", rank},
               {"groups", Json::array()},
               {"new_group_calls", costs.new_group_calls},
               {"exchanged_bytes", costs.exchanged_bytes},
               {"window_bytes", costs.window_bytes},
               {"plan", plan.text()}};
  for (std::size_t i = 0; i < plan.families().size(); ++i) {
    const MeshFamily& family = plan.families()[i];
    Json entry = {{"name", family.name},
                  {"key", family.key},
                  {"groups", family.groups},
                  {"group_size", family.group_size},
                  {"description", family.description}};
    if (options.all || family.name == options.family) entry["all_groups"] = plan.all_groups(static_cast<int>(i));
    if (!estimates.families.empty() && estimates.families[i])
      entry["seconds"] = {{"alone", estimates.families[i]->alone}, {"together", estimates.families[i]->together}};
    json["families"].push_back(std::move(entry));
  }
  if (!estimates.families.empty())
    json["call"] = {{"collective", to_string(estimates.call.collective)}, {"bytes", estimates.call.bytes}};
  for (const MeshGroup& group : plan.groups_of(rank)) {
    Json names = Json::array();
    for (const int family : group.families) names.push_back(plan.families()[static_cast<std::size_t>(family)].name);
    json["groups"].push_back({{"families", std::move(names)}, {"ranks", group.ranks}});
  }
  return json;
}

/// How one family differs between two plans.
struct Difference {
  std::string family;
  std::string text;
};

std::vector<Difference> differences(const MeshPlan& one, const MeshPlan& other) {
  std::vector<Difference> found;
  for (std::size_t i = 0; i < one.families().size(); ++i) {
    const std::string& name = one.families()[i].name;
    const Result<int> there = other.family(name);
    if (!there.ok()) {
      found.push_back({name, "only in the first"});
      continue;
    }
    const std::vector<std::vector<Rank>> first = one.all_groups(static_cast<int>(i)), second = other.all_groups(*there);
    if (first == second) continue;
    const auto [a, b] = std::mismatch(first.begin(), first.end(), second.begin(), second.end());
    const auto text = [](auto at, const auto& groups) {
      return at == groups.end() ? std::string("none") : mesh_ranks_text(*at);
    };
    found.push_back({name, fmt::format("{} groups and {}; the first that differ: {}, and {}", first.size(),
                                       second.size(), text(a, first), text(b, second))});
  }
  for (const MeshFamily& family : other.families())
    if (!one.family(family.name).ok()) found.push_back({family.name, "only in the second"});
  return found;
}

Result<int> compare(const MeshPlan& plan, const MeshShowOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const MeshPlan other, plan_of(options.check, plan.world_size()));
  const std::vector<Difference> found = differences(plan, other);
  if (options.as_json) {
    Json json = {{"first", plan.text()}, {"second", other.text()}, {"differences", Json::object()}};
    for (const Difference& difference : found) json["differences"][difference.family] = difference.text;
    fmt::print("{}\n", json.dump(2));
  } else {
    for (const Difference& difference : found) fmt::print("{:<26} {}\n", difference.family, difference.text);
    if (found.empty()) fmt::print("all {} families have the same groups\n", plan.families().size());
  }
  return found.empty() ? kSuccess : kFailure;
}

Result<int> show(const MeshShowOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const MeshPlan plan, plan_of(options.sizes, options.world));
  if (!options.check.empty()) return compare(plan, options);
  const Rank rank = options.rank < 0 ? plan.rank_offset() : options.rank;
  if (rank < plan.rank_offset() || rank >= plan.rank_offset() + plan.world_size())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("rank {} is not in the mesh, which has ranks {} to {}", rank, plan.rank_offset(),
                              plan.rank_offset() + plan.world_size() - 1));
  int family = 0;
  if (!options.family.empty()) {
    const Result<int> found = plan.family(options.family);
    if (!found.ok()) return Status(StatusCode::kInvalidArgument, found.status().message());
    family = *found;
  }
  ACCORD_ASSIGN_OR_RETURN(const Estimates estimates, estimates_of(plan, rank, options));
  if (!options.chart.empty()) ACCORD_RETURN_IF_ERROR(write_file(options.chart, mesh_chart(plan, family, rank)));
  if (options.as_json) {
    fmt::print("{}\n", json_of(plan, rank, estimates, options).dump(2));
  } else {
    fmt::print("{}", text_of(plan, rank, estimates, options));
  }
  return kSuccess;
}

}  // namespace

void add_mesh_show(CLI::App& mesh, Action& chosen) {
  const auto options = std::make_shared<MeshShowOptions>();
  CLI::App* command = mesh.add_subcommand(
      "show", "Show the groups that result from a job's parallelism, or compare two configurations");
  command
      ->add_option(
          "SIZES", options->sizes,
          "\"tp=8,pp=8,cp=2,ep=16\": sizes of tp, cp, pp, dp, gtp, ep, etp and egtp, and order=, rank_offset=, "
          "hierarchical_cp=2x4, hybrid_cp=, optimizer_instances=, embedding_stages=, gloo_groups=")
      ->required();
  command->add_option("--world", options->world, "ranks of the job; may be omitted if SIZES has dp=")
      ->check(positive_number());
  command->add_option("--rank", options->rank, "rank whose groups to list [the first rank]");
  command->add_option("--family", options->family,
                      "list all groups of this family; also sets the family that --chart colors");
  command->add_flag("--all", options->all, "list all groups of all families");
  command->add_option("--check", options->check, "compare with these sizes: exit code 1 if some groups differ");
  command->add_option("--chart", options->chart, "draw the grid in this SVG file");
  CLI::Option* const machine = command->add_option(
      "--sim", options->machine,
      "estimate a call of each family on the machine that this file describes (docs/simulation.md)");
  command->add_option("--collective", options->collective, "the call of --sim")->needs(machine)->capture_default_str();
  command->add_option("--bytes", options->bytes, "the size of that call")->needs(machine)->capture_default_str();
  command->add_flag("--json", options->as_json, "print JSON");
  command->callback([options, &chosen] {
    chosen = [options] {
      const Result<int> code = show(*options);
      if (code.ok()) return *code;
      fmt::print(stderr, "accord mesh show: {}\n", code.status().to_string());
      return code.status().code() == StatusCode::kInvalidArgument ? kUsageError : kFailure;
    };
  });
}

}  // namespace accord::cli
