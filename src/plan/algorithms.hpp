#pragma once
// The built-in algorithms: pure functions from topology and request to a Plan, one file each in algorithms/.

#include <span>
#include <string_view>

#include "plan/builder.hpp"
#include "plan/plan.hpp"
#include "topology/topology.hpp"

namespace accord::plan {

using Algorithm = Result<Plan> (*)(const topology::Topology& topology, const Request& request);

class RegisteredPlans;

/// A built-in algorithm, or plans that were registered under one name (registry.hpp).
struct AlgorithmEntry {
  Collective collective = Collective::kBarrier;
  std::string_view name;
  Algorithm make = nullptr;              ///< null for registered plans: make_plan() serves both
  std::string_view source;               ///< the paper or system it comes from
  Order order = Order::kNone;            ///< that its plans declare, if it is built in
  Buffers buffers = Buffers::kAnywhere;  ///< the same
  const RegisteredPlans* registered = nullptr;
  /// Ranks that its plans are meant for; null: any. The selector passes over rows whose topology it does not fit.
  bool (*fits)(const topology::Topology& topology) = nullptr;
  /// The selector passes over its rows for avg and premul_sum, which add all ranks at once.
  bool adds_in_parts = false;
  /// Of peers' buffers its plans read inputs, by copies: what the kernel can do as well.
  bool only_reads = false;
  /// Its plans reach peers through multicast, which only GPUs have, behind a switch.
  bool multicasts = false;
  /// A library's, on memory of GPUs: it has no plans.
  bool is_library = false;
};

/// Its plan. kUnsupported for a library's; kNotFound if none that was registered fits the ranks and the root; else as the algorithm says.
Result<Plan> make_plan(const AlgorithmEntry& entry, const topology::Topology& topology, const Request& request);

/// Whether its plan for that many ranks and that root has multicast.
bool needs_multicast(const AlgorithmEntry& entry, int size, Rank root);

/// All built-in algorithms that have plans, grouped by collective.
std::span<const AlgorithmEntry> algorithms();
/// One of these, of those that were registered, or NCCL's, "nccl"; kNotFound names the nearest one.
Result<const AlgorithmEntry*> algorithm_by_name(Collective collective, std::string_view name);

}  // namespace accord::plan
