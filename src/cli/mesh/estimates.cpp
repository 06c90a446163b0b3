// Families with the same groups are simulated once.
#include "cli/mesh/estimates.hpp"

#include <map>
#include <memory>
#include <set>

#include "base/config.hpp"
#include "sim/schedule_builder.hpp"
#include "sim/simulate.hpp"

namespace accord::cli {
namespace {

using Groups = std::set<std::vector<Rank>>;

class Estimator {
 public:
  Estimator(const MeshCall& call, const sim::Machine& machine, const topology::Topology& topology)
      : request_{.collective = call.collective,
                 .dtype = DType::kUInt8,
                 .op = ReduceOp::kSum,
                 .count = call.collective == Collective::kBarrier ? 0 : call.bytes},
        machine_(machine),
        topology_(topology) {}

  /// Returns the seconds until all of these groups have ended the call, which they make at once.
  Result<double> seconds_of(const Groups& groups) {
    if (const auto known = seconds_.find(groups); known != seconds_.end()) return known->second;
    sim::ScheduleBuilder builder(machine_, topology_, config()->hints.slot_bytes);
    for (const std::vector<Rank>& group : groups)
      ACCORD_RETURN_IF_ERROR(
          builder.call(request_, std::make_shared<const std::vector<Rank>>(group), 0, "call").status());
    ACCORD_ASSIGN_OR_RETURN(const sim::Times times,
                            sim::simulate(std::move(builder).take(), machine_, topology_, sim::Sharing::kQueues));
    return seconds_[groups] = times.seconds;
  }

 private:
  exec::RequestRecord request_;
  const sim::Machine& machine_;
  const topology::Topology& topology_;
  std::map<Groups, double> seconds_;
};

// The groups of the family that have a rank on a host of `group`.
Groups groups_beside(const MeshPlan& plan, int family, const std::vector<Rank>& group,
                     const topology::Topology& topology) {
  const Rank end = plan.rank_offset() + plan.world_size();
  Groups groups;
  for (const Rank member : group)
    for (const Rank other : topology.ranks_of_host(topology.host_of(member)))
      if (other >= plan.rank_offset() && other < end) groups.insert(plan.ranks_of(family, other));
  return groups;
}

std::size_t ranks_of(const Groups& groups) {
  std::size_t ranks = 0;
  for (const std::vector<Rank>& group : groups) ranks += group.size();
  return ranks;
}

}  // namespace

Result<std::vector<std::optional<FamilySeconds>>> estimate_families(const MeshPlan& plan, Rank rank,
                                                                    const MeshCall& call, const sim::Machine& machine) {
  ACCORD_RETURN_IF_ERROR(config().status());
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology,
                          sim::topology_of(machine, plan.rank_offset() + plan.world_size()));
  Estimator estimator(call, machine, topology);
  std::vector<std::optional<FamilySeconds>> all;
  for (int family = 0; family < static_cast<int>(plan.families().size()); ++family) {
    all.emplace_back();
    const std::vector<Rank> group = plan.ranks_of(family, rank);
    if (group.size() < 2 || group.size() > kMostEstimatedRanks) continue;
    const Groups beside = groups_beside(plan, family, group, topology);
    if (ranks_of(beside) > kMostEstimatedRanks) continue;
    ACCORD_ASSIGN_OR_RETURN(const double alone, estimator.seconds_of({group}));
    ACCORD_ASSIGN_OR_RETURN(const double together, estimator.seconds_of(beside));
    all.back() = FamilySeconds{alone, together};
  }
  return all;
}

}  // namespace accord::cli
