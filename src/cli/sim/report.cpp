#include "cli/sim/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/plan/commands.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

using Clock = std::chrono::steady_clock;

constexpr std::size_t kShownLinks = 5;

double part_used(const sim::Times& times, std::size_t link) {
  return times.link_bytes[link] / (times.links[link].bytes_per_second * times.seconds);
}

// The links that carried something, the busiest first.
std::vector<std::size_t> busy_links(const sim::Times& times) {
  std::vector<std::size_t> links(times.links.size());
  std::iota(links.begin(), links.end(), std::size_t{0});
  std::erase_if(links, [&](std::size_t link) { return times.link_bytes[link] == 0; });
  std::stable_sort(links.begin(), links.end(),
                   [&](std::size_t a, std::size_t b) { return part_used(times, a) > part_used(times, b); });
  return links;
}

Json path_json(const SimRecording& recording) {
  Json parts = Json::object(), steps = Json::array();
  for (std::size_t part = 0; part < sim::kPathParts; ++part)
    parts[std::string(to_string(static_cast<sim::PathPart>(part)))] = recording.path.seconds[part];
  for (const auto& [number, waited] : recording.path.steps) {
    const sim::JournalEntry& entry = recording.journal.entries[number];
    steps.push_back({{"rank", entry.rank},
                     {"lane", entry.lane},
                     {"round", entry.round},
                     {"task", recording.labels[recording.tasks[entry.task].label]},
                     {"operation", to_string(entry.kind)},
                     {"begin", entry.begin},
                     {"end", entry.end},
                     {"waited", waited},
                     {"waited_for", to_string(entry.reason)}});
  }
  Json labels = Json::object();
  for (const auto& [label, seconds] : path_by_label(recording)) labels[label] = seconds;
  return {{"seconds", std::move(parts)}, {"by_task", std::move(labels)}, {"steps", std::move(steps)}};
}

void print_path(const SimRecording& recording) {
  std::set<Rank> ranks;
  for (const sim::PathStep& step : recording.path.steps) ranks.insert(recording.journal.entries[step.entry].rank);
  fmt::print("  critical path: {} operations on {} ranks\n", recording.path.steps.size(), ranks.size());
  const auto print_part = [&](std::string_view name, double seconds) {
    fmt::print("    {:<28} {:>9}  {:3.0f} %\n", name, time_text(seconds), 100 * seconds / recording.times.seconds);
  };
  for (std::size_t part = 0; part < sim::kPathParts; ++part)
    if (const double seconds = recording.path.seconds[part]; seconds > 0)
      print_part(to_string(static_cast<sim::PathPart>(part)), seconds);
  if (recording.labels.size() < 2) return;
  fmt::print("  by task, with what it waited for:\n");
  for (const auto& [label, seconds] : path_by_label(recording)) print_part(label, seconds);
}

void add_to_json(const SimRecording& recording, Json& answer) {
  const sim::Times& times = recording.times;
  Json ranks = Json::array(), links = Json::array();
  for (const sim::RankTimes& rank : times.ranks)
    ranks.push_back({{"end", rank.end}, {"working", rank.working}, {"waiting", rank.waiting}});
  for (const std::size_t link : busy_links(times))
    links.push_back(
        {{"link", times.links[link].name}, {"bytes", times.link_bytes[link]}, {"used", part_used(times, link)}});
  answer["simulated_ranks"] = times.simulated_ranks;
  answer["operations"] = times.operations;
  answer["simulated_in_seconds"] = recording.simulated_in;
  answer["by_rank"] = std::move(ranks);
  answer["links"] = std::move(links);
  if (!recording.path.steps.empty()) answer["critical_path"] = path_json(recording);
}

void print_times(const SimRecording& recording) {
  const sim::Times& times = recording.times;
  fmt::print("{}\n", recording.title);
  const auto most = [&](double sim::RankTimes::*field) {
    return std::max_element(times.ranks.begin(), times.ranks.end(),
                            [&](const auto& a, const auto& b) { return a.*field < b.*field; });
  };
  for (const auto& [text, field] :
       {std::pair{"working", &sim::RankTimes::working}, {"waiting", &sim::RankTimes::waiting}}) {
    const auto rank = most(field);
    fmt::print("  {} longest: rank {}, {}\n", text, rank - times.ranks.begin(), time_text((*rank).*field));
  }
  const std::vector<std::size_t> links = busy_links(times);
  for (std::size_t i = 0; i < std::min(links.size(), kShownLinks); ++i)
    fmt::print("  {}: {}, {:.0f} % of its capacity\n", times.links[links[i]].name,
               bytes_text(static_cast<std::size_t>(times.link_bytes[links[i]])), 100 * part_used(times, links[i]));
  if (!recording.path.steps.empty()) print_path(recording);
  fmt::print("  simulated {} operations of {} ranks in {}\n", times.operations, times.simulated_ranks,
             time_text(recording.simulated_in));
}

Status write_documents(const SimOutput& output, const SimRecording& recording) {
  if (!output.trace.empty()) {
    ACCORD_ASSIGN_OR_RETURN(const std::string trace, sim_trace(recording));
    ACCORD_RETURN_IF_ERROR(write_file(output.trace, trace));
  }
  return output.timeline.empty() ? Status() : write_file(output.timeline, sim_timeline(recording));
}

// Calls `run` with the journal, if there shall be one.
template <typename Run>
Status record(const SimOutput& output, SimRecording& recording, Run run) {
  const Clock::time_point begin = Clock::now();
  ACCORD_ASSIGN_OR_RETURN(recording.times, run(output.records() ? &recording.journal : nullptr));
  recording.simulated_in = std::chrono::duration<double>(Clock::now() - begin).count();
  recording.path = sim::critical_path(recording.journal);
  return {};
}

}  // namespace

void add_sim_output(CLI::App& command, SimOutput& output) {
  command.add_option("--machine", output.machine, "File that describes the machine (docs/simulation.md)")->required();
  command.add_option("--links", output.links, "How messages share links: fair, or queues, which is faster to simulate")
      ->check(CLI::IsMember({"fair", "queues"}))
      ->capture_default_str();
  command.add_flag("--path", output.shows_path, "Show where time goes on the critical path");
  command.add_option("--trace", output.trace, "Write what all ranks do to FILE, for ui.perfetto.dev")
      ->type_name("FILE");
  command.add_option("--timeline", output.timeline, "Write a chart of ranks and links over time to FILE (SVG)")
      ->type_name("FILE");
  command.add_flag("--json", output.as_json, "Print JSON");
}

Status simulate(sim::Schedule schedule, const sim::Machine& machine, const topology::Topology& topology,
                const SimOutput& output, SimRecording& recording) {
  ACCORD_RETURN_IF_ERROR(record(output, recording, [&](sim::Journal* journal) {
    return sim::simulate(schedule, machine, topology, output.sharing(), journal);
  }));
  recording.tasks = std::move(schedule.tasks);
  recording.labels = std::move(schedule.labels);
  return {};
}

Status simulate(sim::Programs programs, std::string label, const sim::Machine& machine,
                const topology::Topology& topology, const SimOutput& output, SimRecording& recording) {
  ACCORD_RETURN_IF_ERROR(record(output, recording, [&](sim::Journal* journal) {
    return sim::simulate(std::move(programs), machine, topology, output.sharing(), journal);
  }));
  recording.labels.push_back(std::move(label));
  for (Rank rank = 0; rank < recording.times.simulated_ranks; ++rank) recording.tasks.push_back({.rank = rank});
  return {};
}

std::vector<std::pair<std::string, double>> path_by_label(const SimRecording& recording) {
  std::vector<double> seconds(recording.labels.size());
  for (const auto& [number, waited] : recording.path.steps) {
    const sim::JournalEntry& entry = recording.journal.entries[number];
    seconds[recording.tasks[entry.task].label] += entry.end - entry.begin + waited;
  }
  std::vector<std::pair<std::string, double>> result;
  for (std::size_t label = 0; label < seconds.size(); ++label)
    if (seconds[label] > 0) result.emplace_back(recording.labels[label], seconds[label]);
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

int report_simulation(std::string_view command, const SimOutput& output, const SimRecording& recording, Json facts) {
  if (const Status written = write_documents(output, recording); !written.ok()) return report_failure(command, written);
  if (output.as_json) {
    add_to_json(recording, facts);
    fmt::print("{}\n", facts.dump(2));
  } else {
    print_times(recording);
  }
  return kSuccess;
}

}  // namespace accord::cli
