#include "sim/cores.hpp"

namespace accord::sim {

Cores::Cores(const Machine& machine, std::size_t ranks)
    : switch_seconds_(machine.host.core_switch_seconds), core_of_rank_(ranks), running_(ranks) {
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto core = static_cast<std::uint32_t>(machine.core_of(static_cast<Rank>(rank)));
    core_of_rank_[rank] = core;
    if (core >= cores_.size()) cores_.resize(core + 1);
    are_shared_ = are_shared_ || cores_[core].last != kNobody;
    cores_[core].last = static_cast<Rank>(rank);
  }
  for (Core& core : cores_) core.last = kNobody;
}

bool Cores::begin(Rank rank, std::uint32_t lane, double now) {
  if (!are_shared_ || runs(lane)) return true;
  Core& core = core_of(rank);
  if (core.owner == rank || (core.owner == kNobody && (core.last == rank || core.last == kNobody))) {
    core.owner = core.last = rank;
    go_on(rank, lane);
    return true;
  }
  core.waiting.emplace_back(rank, lane);
  if (core.owner == kNobody) grant_to(core, rank, now);
  return false;
}

void Cores::go_on(Rank rank, std::uint32_t lane) {
  if (!are_shared_ || runs(lane) || core_of(rank).owner != rank) return;
  if (lane >= runs_.size()) runs_.resize(lane + 1);
  runs_[lane] = true;
  ++running_[static_cast<std::size_t>(rank)];
}

void Cores::stop(Rank rank, std::uint32_t lane) {
  if (!are_shared_ || !runs(lane)) return;
  runs_[lane] = false;
  --running_[static_cast<std::size_t>(rank)];
}

void Cores::release_if_idle(Rank rank, double now) {
  if (!are_shared_) return;
  Core& core = core_of(rank);
  if (core.owner != rank || running_[static_cast<std::size_t>(rank)] > 0) return;
  core.owner = kNobody;
  if (!core.waiting.empty()) grant_to(core, core.waiting.front().first, now);
}

void Cores::grant_to(Core& core, Rank rank, double now) {
  core.owner = core.last = rank;
  for (const auto& [other, lane] : core.waiting) {
    if (other != rank) continue;
    go_on(rank, lane);
    granted_.emplace_back(lane, now + switch_seconds_);
  }
  std::erase_if(core.waiting, [&](const auto& one) { return one.first == rank; });
}

}  // namespace accord::sim
