#pragma once
// The plans of one channel, ready to run for the requests that were made last.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "accord/status.hpp"
#include "exec/domain.hpp"
#include "exec/lowered.hpp"
#include "plan/bounds.hpp"
#include "plan/selector.hpp"
#include "topology/topology.hpp"

namespace accord::comm {

class Group;

/// Everything that a plan is chosen and lowered for.
struct PlanKey {
  const exec::RequestRecord& record;     ///< as callers make it
  const plan::Extent* extent = nullptr;  ///< of unequal parts; null for equal ones
  std::size_t counts = 0;                ///< of a rank, if the record says Phase::kCountsFirst
  bool registered = false;               ///< the callers' buffers are in windows
  bool in_place = false;                 ///< registered, and input and output overlap
};

/// A plan, lowered for a request.
struct PreparedPlan {
  exec::LoweredPlan plan;
  exec::RequestRecord request;
  bool registered = false;
  std::vector<std::size_t> extent;  ///< the sizes of unequal parts; empty for equal parts
  bool in_place = false;
  bool apart = false;           ///< the plan requires input and output that do not overlap
  std::uint64_t algorithm = 0;  ///< its number in the recorder
};

/// Used by the owner of the channel only.
class PlanCache {
 public:
  /// A plan that the holder used last. It is valid until the cache drops plans.
  struct Known {
    const PreparedPlan* plan = nullptr;
    std::uint64_t drops = 0;
  };

  /// All three outlive the cache.
  PlanCache(Group& group, const exec::Domain& domain, const topology::Topology& topology)
      : group_(group), domain_(domain), topology_(topology) {}

  /// Returns the kept plan for a request; null if there is none. Costs a few nanoseconds.
  const PreparedPlan* find(const PlanKey& key) {
    const PreparedPlan* const prepared = slot_of(key).get();
    return serves(prepared, key) ? prepared : nullptr;
  }
  /// Builds and lowers the plan for a request. It is kept until another request takes its slot.
  Result<const PreparedPlan*> prepare(const PlanKey& key);
  /// Returns the known plan if it is still valid, else null.
  const PreparedPlan* find(const Known& known) const;
  Known known(const PreparedPlan* plan) const { return {.plan = plan, .drops = drops_}; }

 private:
  static constexpr std::size_t kSlots = 64;

  std::unique_ptr<PreparedPlan>& slot_of(const PlanKey& key);
  /// Whether the plan in a slot is the one for that request.
  bool serves(const PreparedPlan* prepared, const PlanKey& key) const;
  Result<PreparedPlan> lower(const PlanKey& key);
  Result<const plan::Plan*> plan_for(const plan::AlgorithmEntry& algorithm, Rank root);

  Group& group_;
  const exec::Domain& domain_;
  const topology::Topology& topology_;
  std::array<std::unique_ptr<PreparedPlan>, kSlots> slots_;
  std::uint64_t version_ = 0;  ///< of the plan registry when the slots were filled
  std::uint64_t drops_ = 0;    ///< grows each time a plan may have left its slot
  std::vector<std::unique_ptr<plan::Plan>> plans_;
};

}  // namespace accord::comm
