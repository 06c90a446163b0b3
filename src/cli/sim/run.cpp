// `accord sim run`: one collective in virtual time: how long it takes, which ranks wait, and which links are busy.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/rounding.hpp"
#include "base/text.hpp"
#include "cli/plan/commands.hpp"
#include "cli/sim/commands.hpp"
#include "cli/sim/recording.hpp"
#include "plan/selector.hpp"
#include "plan/step_rules.hpp"
#include "sim/critical_path.hpp"
#include "sim/simulate.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostRanks = plan::kMaxSize;
constexpr std::size_t kShownLinks = 5;

struct SimRunOptions {
  std::string collective;
  PlanCallText call;
  std::string machine;
  int ranks = 2;
  Rank root = 0;
  std::string algorithm;
  std::string select;
  std::string links = "fair";
  int calls = 1;
  bool folds = true;
  bool shows_path = false;
  std::string trace, timeline;  // files
  bool as_json = false;

  bool records() const { return shows_path || !trace.empty() || !timeline.empty(); }
};

struct SimulatedCall {
  Collective collective = Collective::kBarrier;
  std::string algorithm;
  std::size_t slot_bytes = 0;  // of the table's row; 0: the default
  int ranks = 1;
  int calls = 1;
  PlanCall call;
  sim::Machine machine;
  int hosts = 1;
  sim::Times times;
  sim::Journal journal;
  sim::CriticalPath path;  // empty without a journal

  double seconds_of_call() const { return times.seconds / calls; }
};

Result<plan::Choice> choose(const SimRunOptions& options, Collective collective, const PlanCall& call,
                            const topology::Topology& topology) {
  if (!options.algorithm.empty()) {
    const auto entry = plan::algorithm_by_name(collective, options.algorithm);
    if (!entry.ok()) return Status(StatusCode::kInvalidArgument, entry.status().message());
    return plan::Choice{*entry, 0};
  }
  ACCORD_ASSIGN_OR_RETURN(const plan::Selector selector, plan::Selector::create(options.select));
  return selector.choose({.collective = collective,
                          .bytes = call.bytes,
                          .root = options.root,
                          .op = call.op,
                          .readable = topology.readable()},
                         topology);
}

Result<SimulatedCall> simulate(const SimRunOptions& options) {
  SimulatedCall result;
  result.ranks = options.ranks;
  result.calls = options.calls;
  ACCORD_ASSIGN_OR_RETURN(result.collective, collective_from_string(options.collective));
  ACCORD_ASSIGN_OR_RETURN(result.call, read_plan_call(options.call, result.collective));
  ACCORD_ASSIGN_OR_RETURN(result.machine, sim::read_machine(options.machine));
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology, sim::topology_of(result.machine, options.ranks));
  result.hosts = topology.host_count();
  ACCORD_ASSIGN_OR_RETURN(const plan::Choice choice, choose(options, result.collective, result.call, topology));
  if (result.hosts > 1 && !choice.algorithm->spans_hosts)
    return Status(StatusCode::kInvalidArgument, fmt::format("{} runs inside one host only", choice.algorithm->name));
  result.algorithm = choice.algorithm->name;
  result.slot_bytes = choice.slot_bytes;
  ACCORD_RETURN_IF_ERROR(config().status());
  const sim::Call call{.request = {.collective = result.collective,
                                   .dtype = result.call.dtype,
                                   .op = result.call.op,
                                   .root = options.root,
                                   .count = result.call.bytes / size_of(result.call.dtype)},
                       .slot_bytes = choice.slot_bytes != 0 ? choice.slot_bytes : config()->hints.slot_bytes,
                       .times = static_cast<std::uint64_t>(options.calls)};
  ACCORD_ASSIGN_OR_RETURN(const sim::Programs programs,
                          sim::programs_of(*choice.algorithm, call, result.machine, topology, options.folds));
  ACCORD_ASSIGN_OR_RETURN(result.times,
                          sim::simulate(programs, result.machine, topology,
                                        options.links == "fair" ? sim::Sharing::kFair : sim::Sharing::kQueues,
                                        options.records() ? &result.journal : nullptr));
  result.path = sim::critical_path(result.journal);
  return result;
}

double part_used(const SimulatedCall& result, std::size_t link) {
  return result.times.link_bytes[link] / (result.times.links[link].bytes_per_second * result.times.seconds);
}

// The links that carried something, the busiest first.
std::vector<std::size_t> busy_links(const SimulatedCall& result) {
  std::vector<std::size_t> links(result.times.links.size());
  std::iota(links.begin(), links.end(), std::size_t{0});
  std::erase_if(links, [&](std::size_t link) { return result.times.link_bytes[link] == 0; });
  std::stable_sort(links.begin(), links.end(),
                   [&](std::size_t a, std::size_t b) { return part_used(result, a) > part_used(result, b); });
  return links;
}

Json path_json(const SimulatedCall& result) {
  Json parts = Json::object(), steps = Json::array();
  for (std::size_t part = 0; part < sim::kPathParts; ++part)
    parts[std::string(to_string(static_cast<sim::PathPart>(part)))] = result.path.seconds[part];
  for (const auto& [number, waited] : result.path.steps) {
    const sim::JournalEntry& entry = result.journal.entries[number];
    steps.push_back({{"rank", entry.rank},
                     {"lane", entry.lane},
                     {"round", entry.round},
                     {"operation", to_string(entry.kind)},
                     {"begin", entry.begin},
                     {"end", entry.end},
                     {"waited", waited},
                     {"waited_for", to_string(entry.reason)}});
  }
  return {{"seconds", std::move(parts)}, {"steps", std::move(steps)}};
}

void print_json(const SimulatedCall& result) {
  Json ranks = Json::array(), links = Json::array();
  for (const sim::RankTimes& rank : result.times.ranks)
    ranks.push_back({{"end", rank.end}, {"working", rank.working}, {"waiting", rank.waiting}});
  for (const std::size_t link : busy_links(result))
    links.push_back({{"link", result.times.links[link].name},
                     {"bytes", result.times.link_bytes[link]},
                     {"used", part_used(result, link)}});
  Json answer = {{"collective", to_string(result.collective)},
                 {"algorithm", result.algorithm},
                 {"slot_bytes", result.slot_bytes},
                 {"bytes", result.call.bytes},
                 {"dtype", to_string(result.call.dtype)},
                 {"ranks", result.ranks},
                 {"hosts", result.hosts},
                 {"calls", result.calls},
                 {"seconds", result.seconds_of_call()},
                 {"simulated_ranks", result.times.simulated_ranks},
                 {"operations", result.times.operations},
                 {"by_rank", std::move(ranks)},
                 {"links", std::move(links)}};
  if (!result.path.steps.empty()) answer["critical_path"] = path_json(result);
  fmt::print("{}\n", answer.dump(2));
}

std::string headline_of(const SimulatedCall& result) {
  const std::string hosts =
      result.hosts == 1 ? "one host"
                        : fmt::format("{} hosts ({})", result.hosts, sim::to_string(result.machine.network.shape));
  std::string text =
      fmt::format("{} of {} by {}, {} ranks on {}: {}", to_string(result.collective), bytes_text(result.call.bytes),
                  result.algorithm, result.ranks, hosts, time_text(result.seconds_of_call()));
  if (result.call.bytes > 0)
    text += fmt::format(", {:.3g} GB/s", static_cast<double>(result.call.bytes) / result.seconds_of_call() / 1e9);
  if (result.calls > 1) text += fmt::format(" (mean of {} calls)", result.calls);
  return text;
}

void print_path(const SimulatedCall& result) {
  std::set<Rank> ranks;
  for (const sim::PathStep& step : result.path.steps) ranks.insert(result.journal.entries[step.entry].rank);
  fmt::print("  critical path: {} operations on {} ranks\n", result.path.steps.size(), ranks.size());
  for (std::size_t part = 0; part < sim::kPathParts; ++part)
    if (const double seconds = result.path.seconds[part]; seconds > 0)
      fmt::print("    {:<28} {:>9}  {:3.0f} %\n", to_string(static_cast<sim::PathPart>(part)), time_text(seconds),
                 100 * seconds / result.times.seconds);
}

void print_text(const SimulatedCall& result) {
  const sim::Times& times = result.times;
  fmt::print("{}\n", headline_of(result));
  const auto most = [&](double sim::RankTimes::*field) {
    return std::max_element(times.ranks.begin(), times.ranks.end(),
                            [&](const auto& a, const auto& b) { return a.*field < b.*field; });
  };
  for (const auto& [text, field] :
       {std::pair{"working", &sim::RankTimes::working}, {"waiting", &sim::RankTimes::waiting}}) {
    const auto rank = most(field);
    fmt::print("  {} longest: rank {}, {}\n", text, rank - times.ranks.begin(), time_text((*rank).*field));
  }
  const std::vector<std::size_t> links = busy_links(result);
  for (std::size_t i = 0; i < std::min(links.size(), kShownLinks); ++i)
    fmt::print("  {}: {}, {:.0f} % of its capacity\n", result.times.links[links[i]].name,
               bytes_text(static_cast<std::size_t>(times.link_bytes[links[i]])), 100 * part_used(result, links[i]));
  if (!result.path.steps.empty()) print_path(result);
}

Status write_documents(const SimRunOptions& options, SimulatedCall& result) {
  if (options.trace.empty() && options.timeline.empty()) return {};
  const std::string name(to_string(result.collective));
  const SimRecording recording{.title = headline_of(result),
                               .task_names = std::vector<std::string>(to_size(result.times.simulated_ranks), name),
                               .times = result.times,
                               .journal = result.journal,
                               .path = result.path};
  if (!options.trace.empty()) {
    ACCORD_ASSIGN_OR_RETURN(const std::string trace, sim_trace(recording));
    ACCORD_RETURN_IF_ERROR(write_file(options.trace, trace));
  }
  return options.timeline.empty() ? Status() : write_file(options.timeline, sim_timeline(recording));
}

int run(const SimRunOptions& options) {
  Result<SimulatedCall> result = simulate(options);
  if (!result.ok()) return report_failure("sim run", result.status());
  if (const Status written = write_documents(options, *result); !written.ok())
    return report_failure("sim run", written);
  options.as_json ? print_json(*result) : print_text(*result);
  return kSuccess;
}

}  // namespace

void add_sim_run(CLI::App& sim, Action& chosen) {
  CLI::App* command = sim.add_subcommand("run", "Run one collective, and show its time, waiting ranks and busy links");
  const auto options = std::make_shared<SimRunOptions>();
  command->add_option("collective", options->collective, "The collective, such as all_reduce")->required();
  command->add_option("bytes", options->call.bytes, "Size of the buffer, or of one rank's part of it, such as 64k")
      ->capture_default_str();
  command->add_option("--machine", options->machine, "File that describes the machine (docs/simulation.md)")
      ->required();
  command->add_option("-n,--ranks", options->ranks, "Ranks, which fill the hosts one after the other")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  command->add_option("--algorithm", options->algorithm, "The algorithm [the one that the table selects]");
  command->add_option("--select", options->select, "Rows of a selection table, after the default ones")
      ->excludes("--algorithm");
  command
      ->add_option("--links", options->links, "How messages share links: fair, or queues, which is faster to simulate")
      ->check(CLI::IsMember({"fair", "queues"}))
      ->capture_default_str();
  command->add_flag("!--no-fold", options->folds, "Simulate all ranks, also those that do the same as others");
  command->add_option("--root", options->root, "The root, for a collective that has one")->capture_default_str();
  add_plan_call(*command, options->call);
  command->add_option("--calls", options->calls, "Calls made one after the other; the time is their mean")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command->add_flag("--path", options->shows_path, "Show where time goes on the critical path");
  command->add_option("--trace", options->trace, "Write what all ranks do to FILE, for ui.perfetto.dev")
      ->type_name("FILE");
  command->add_option("--timeline", options->timeline, "Write a chart of ranks and links over time to FILE (SVG)")
      ->type_name("FILE");
  command->add_flag("--json", options->as_json, "Print JSON");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace accord::cli
