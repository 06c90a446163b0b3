#pragma once
// The built-in algorithms: pure functions from topology and request to a Plan.
//
// The file algorithms/COLLECTIVE/NAME.cpp is the algorithm NAME: it defines AlgorithmEntry COLLECTIVE_NAME_entry(),
// which returns its row. Nothing else lists the algorithm.

#include <span>
#include <string_view>

#include "plan/builder.hpp"
#include "plan/plan.hpp"
#include "topology/topology.hpp"

namespace accord::plan {

using Algorithm = Result<Plan> (*)(const topology::Topology& topology, const Request& request);

class RegisteredPlans;

/// The facts in the tables of docs/algorithms.md, which says what n, h and M are.
struct AlgorithmDescription {
  std::string_view steps;     ///< signals or packets that follow each other on the longest path
  std::string_view bytes;     ///< moved by the rank that moves the most; barrier: its signals
  std::string_view selected;  ///< when the default table selects it, or kByName
  std::string_view source;    ///< the paper or system it comes from

  static constexpr std::string_view kByName = "by name";
};

/// A built-in algorithm, or the plans registered under one name (registry.hpp).
struct AlgorithmEntry {
  Collective collective = Collective::kBarrier;
  std::string_view name = {};
  Algorithm make = nullptr;              ///< null for registered plans: make_plan() serves both
  Order order = Order::kNone;            ///< order declared by its plans, if built in
  Buffers buffers = Buffers::kAnywhere;  ///< buffers declared by its plans, if built in
  /// Topologies that its plans are meant for; null: any. The selector skips its rows for other topologies.
  bool (*fits)(const topology::Topology& topology) = nullptr;
  /// Its plans run on several hosts: no rank reads, or adds in, the memory of another host.
  bool spans_hosts = false;
  /// The selector skips its rows for avg and premul_sum, which add all ranks at once.
  bool adds_in_parts = false;
  /// Its plans access peers' buffers only to copy their inputs, which the kernel can do as well.
  bool only_reads = false;
  /// Its plans reach peers through multicast, which exists only on GPUs behind a switch.
  bool multicasts = false;
  AlgorithmDescription description = {};  ///< of a built-in algorithm
  const RegisteredPlans* registered = nullptr;
  /// Implemented by a library for GPU memory: it has no plans.
  bool is_library = false;
};

/// Returns its plan. Fails with kUnsupported for a library, with kNotFound if no registered plan fits the ranks and
/// the root, otherwise as the algorithm does.
Result<Plan> make_plan(const AlgorithmEntry& entry, const topology::Topology& topology, const Request& request);

/// Whether its plan for `size` ranks and `root` uses multicast.
bool needs_multicast(const AlgorithmEntry& entry, int size, Rank root);

/// All built-in algorithms that have plans, by collective and name.
std::span<const AlgorithmEntry> algorithms();
/// Finds a built-in algorithm, a registered one, or NCCL's, "nccl". kNotFound gives the nearest name.
Result<const AlgorithmEntry*> algorithm_by_name(Collective collective, std::string_view name);

}  // namespace accord::plan
