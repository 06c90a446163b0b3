// The rows of the built-in algorithms come from their files, in the order of the files' names. Those of one collective
// are listed together.

#include "plan/algorithms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "plan/registry.hpp"

namespace accord::plan {

/// Calls the functions of all files in algorithms/COLLECTIVE/. CMake writes it (cmake/AccordAlgorithms.cmake).
std::vector<AlgorithmEntry> built_in_entries();

namespace {

constexpr AlgorithmEntry of_nccl(Collective collective, Order order = Order::kNone) {
  return {.collective = collective, .name = "nccl", .order = order, .is_library = true};
}

constexpr std::array kLibraries = {
    of_nccl(Collective::kBroadcast),
    of_nccl(Collective::kAllGather),
    of_nccl(Collective::kReduceScatter, Order::kFixed),
    of_nccl(Collective::kAllReduce, Order::kFixed),
    of_nccl(Collective::kReduce, Order::kFixed),
    of_nccl(Collective::kGather),
    of_nccl(Collective::kScatter),
    of_nccl(Collective::kAllToAll),
};

}  // namespace

std::span<const AlgorithmEntry> algorithms() {
  // Never destroyed: communicators may outlive main().
  static const std::vector<AlgorithmEntry>* const entries = [] {
    auto* const grouped = new std::vector(built_in_entries());
    std::ranges::stable_sort(*grouped, {}, &AlgorithmEntry::collective);
    return grouped;
  }();
  return *entries;
}

Result<const AlgorithmEntry*> algorithm_by_name(Collective collective, std::string_view name) {
  std::vector<std::string_view> names;
  for (const AlgorithmEntry& entry : algorithms()) {
    if (entry.collective != collective) continue;
    if (entry.name == name) return &entry;
    names.push_back(entry.name);
  }
  for (const AlgorithmEntry& entry : kLibraries)
    if (entry.collective == collective && entry.name == name) return &entry;
  if (const AlgorithmEntry* entry = registered_algorithm(collective, name)) return entry;
  for (const AlgorithmEntry* entry : registered_algorithms())
    if (entry->collective == collective) names.push_back(entry->name);
  const Status unknown = unknown_name(std::string(to_string(collective)) + " algorithm", name, names);
  return Status(StatusCode::kNotFound, unknown.message());
}

Result<Plan> make_plan(const AlgorithmEntry& entry, const topology::Topology& topology, const Request& request) {
  if (entry.is_library)
    return Status(StatusCode::kUnsupported, fmt::format("{} is implemented by a library and has no plans", entry.name));
  if (entry.registered == nullptr) return entry.make(topology, request);
  const Plan* whole = entry.registered->find(topology.size(), request.root);
  if (whole == nullptr)
    return Status(StatusCode::kNotFound, fmt::format("no plan \"{}\" for {} ranks and root {} is registered",
                                                     entry.name, topology.size(), request.root));
  Plan own = *whole;
  for (Rank rank = 0; rank < own.size; ++rank)
    if (!request.includes(rank)) own.programs[static_cast<std::size_t>(rank)] = {};
  return own;
}

bool needs_multicast(const AlgorithmEntry& entry, int size, Rank root) {
  if (entry.registered == nullptr) return entry.multicasts;
  const Plan* const plan = entry.registered->find(size, root);
  return plan != nullptr && plan->multicast_chunks > 0;
}

}  // namespace accord::plan
