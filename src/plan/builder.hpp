#pragma once
// Writes plans: an algorithm lists the steps of each rank, in order.

#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "topology/topology.hpp"

namespace accord::plan {

/// Parameters from which a plan is built. Message sizes are run-time parameters and not among them.
struct Request {
  Collective collective = Collective::kBarrier;
  Rank root = 0;
  Rank only_rank = kAllRanks;  ///< if set, only the programs of this rank and of the next ones are built
  int rank_count = 1;          ///< how many, with only_rank

  static constexpr Rank kAllRanks = -1;
  bool includes(Rank rank) const {
    return only_rank == kAllRanks || (rank >= only_rank && rank < only_rank + rank_count);
  }
};

/// Chunk counts of a plan.
struct Shape {
  int input_chunks = 0;
  int output_chunks = 0;
  int scratch_chunks = 0;
  int packet_chunks = 0;
  int partial_chunks = 0;
  int multicast_chunks = 0;
};

inline Chunk input(Rank rank, int index) { return {rank, Space::kInput, index}; }
inline Chunk output(Rank rank, int index) { return {rank, Space::kOutput, index}; }
inline Chunk scratch(Rank rank, int index) { return {rank, Space::kScratch, index}; }
inline Chunk packets(Rank rank, int index) { return {rank, Space::kPackets, index}; }
inline Chunk partials(Rank rank, int index) { return {rank, Space::kPartials, index}; }
inline Chunk multicast(Rank rank, int index) { return {rank, Space::kMulticast, index}; }

/// Collects steps; build() then returns the Plan, or an error that names the invalid step. Steps are added to lane 0
/// unless lane() selects another.
class PlanBuilder {
 public:
  PlanBuilder(std::string name, const Request& request, int size, Shape shape);

  /// The ranks whose programs are requested.
  std::vector<Rank> ranks() const;

  /// Adds steps of one rank. Steps of ranks that were not requested are dropped.
  class OnRank {
   public:
    OnRank& lane(int index);
    /// No step if there are no destinations.
    OnRank& copy(Chunk source, std::vector<Chunk> destinations);
    /// With a single source that is not of every rank, a copy.
    OnRank& reduce(std::vector<Chunk> sources, std::vector<Chunk> destinations);
    OnRank& signal(Rank peer, int id = 0);
    OnRank& wait(Rank peer, int id = 0);
    OnRank& put_packets(Chunk source, Chunk peer_packets);
    OnRank& lane_barrier(int id = 0);

   private:
    friend class PlanBuilder;
    OnRank(PlanBuilder* builder, Rank rank) : builder_(builder), rank_(rank) {}
    OnRank& add(Step step);
    PlanBuilder* builder_;
    Rank rank_;
    int lane_ = 0;
  };
  OnRank on(Rank rank) { return OnRank(this, rank); }

  void set_order(Order order) { plan_.order = order; }
  void set_pacing(Pacing pacing) { plan_.pacing = pacing; }
  /// Call before adding steps that touch buffers of peers.
  void set_buffers(Buffers buffers) { plan_.buffers = buffers; }
  /// kInvalidArgument names the step. Checks what a single step can show; verify() checks the plan as a whole.
  Result<Plan> build() &&;

 private:
  Plan plan_;
  Request request_;
  Status first_error_;
};

}  // namespace accord::plan
