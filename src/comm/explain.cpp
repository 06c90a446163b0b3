#include "comm/explain.hpp"

#include <fmt/format.h>

#include <vector>

#include "base/config.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "exec/domain.hpp"

namespace accord::comm {
namespace {

std::string counted(std::size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// "0-3, 8, 10-11"
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += first == last ? fmt::format("{}", numbers[first]) : fmt::format("{}-{}", numbers[first], numbers[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace

std::string describe_group(std::string_view name, std::string_view transport, const topology::Topology& topology) {
  std::string text =
      fmt::format("group \"{}\": {} on {}, over {}{}", name, counted(static_cast<std::size_t>(topology.size()), "rank"),
                  counted(static_cast<std::size_t>(topology.host_count()), "host"), transport,
                  topology.oversubscribed() ? "; more ranks than cores, so ranks that wait yield their cores" : "");
  for (int host = 0; host < topology.host_count(); ++host) {
    text += fmt::format("\n  host {} ({})", host, topology.place(topology.ranks_of_host(host).front()).host);
    for (const Rank rank : topology.ranks_of_host(host)) {
      const topology::Place& place = topology.place(rank);
      text += fmt::format("\n    rank {}: process {}, {} (processors {}), memory {} {}", rank, place.process,
                          counted(static_cast<std::size_t>(place.cores), "core"), ranges(place.cpus),
                          place.numa_nodes.size() == 1 ? "node" : "nodes", ranges(place.numa_nodes));
    }
  }
  return text;
}

std::string describe_choice(std::string_view group, std::string_view algorithm, const exec::LoweredPlan& plan) {
  std::size_t steps = 0;
  for (const auto& lane : plan.lanes) steps += lane.size();
  return fmt::format("group \"{}\": {}, {}: {}, {} in {}, {}", group, exec::to_string(plan.record),
                     bytes_text(plan.record.count * size_of(plan.record.dtype)), algorithm, counted(steps, "step"),
                     counted(plan.lanes.size(), "lane"), counted(plan.rounds, "round"));
}

bool explains() { return config()->debug == "info"; }

void explain(std::string_view text) {
  if (!explains()) return;
  for (const std::string_view line : split_text(text, '\n')) log().info("{}", line);
}

}  // namespace accord::comm
