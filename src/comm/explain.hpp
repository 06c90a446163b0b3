#pragma once
// Text that ACCORD_DEBUG=info logs about communicators: where their ranks run, and which plans serve their calls.

#include <string>
#include <string_view>

#include "exec/lowered.hpp"
#include "topology/topology.hpp"

namespace accord::comm {

/// Several lines: `group "tp": 4 ranks on 1 host, over shm`, then for each host its ranks, processes, cores and
/// memory nodes.
std::string describe_group(std::string_view name, std::string_view transport, const topology::Topology& topology);

/// `group "tp": all_reduce of 4096 x float32 (sum), 16 KiB: two_shot, 9 steps in 1 lane, 1 round`.
std::string describe_choice(std::string_view group, std::string_view algorithm, const exec::LoweredPlan& plan);

/// Writes each line of `text` to the log if ACCORD_DEBUG=info.
void explain(std::string_view text);
/// True if ACCORD_DEBUG=info, so that creating the text for explain() is worthwhile.
bool explains();

}  // namespace accord::comm
