#pragma once
// The costs of a rank's steps in the memory of its host.

#include <cstdint>

#include "plan/bounds.hpp"
#include "plan/plan.hpp"
#include "sim/machine.hpp"
#include "topology/topology.hpp"

namespace accord::sim {

/// How a call of a plan is divided into rounds.
struct RoundShape {
  std::uint64_t slice = 1;  ///< elements of a chunk in each round but the last
  std::uint64_t rounds = 1;
  std::uint32_t depth = 1;  ///< rounds that may be in flight
  bool reads = false;       ///< other ranks' inputs are copied by the kernel
};

/// The cost of an element.
struct ElementCost {
  double seconds = 0;
  double bytes = 0;  ///< read and written in memory, outside the caches
};

/// Costs of copies, reductions and packets of one rank, without what they send to other hosts. Depends on the plan as a
/// whole: what a rank uses before it uses the same bytes again decides how fast it gets them.
class StepCosts {
 public:
  /// `partial_bytes`: of an element of partials. All references must outlive this object.
  StepCosts(const plan::Plan& plan, Rank rank, const plan::Bounds& bounds, RoundShape shape, std::size_t element_bytes,
            std::size_t partial_bytes, const HostModel& host, const topology::Topology& topology);

  /// `length`: elements of the step over all rounds.
  ElementCost of(const plan::Step& step, std::uint64_t length) const;

 private:
  void find_working_sets(const plan::Plan& plan, const plan::Bounds& bounds);
  double working_set_of(const plan::Chunk& chunk) const;
  bool is_other(const plan::Chunk& chunk) const { return chunk.rank != rank_ && chunk.rank != plan::kEveryRank; }
  bool is_remote(const plan::Chunk& chunk) const;
  bool stays_in_place(const plan::Step& step, const plan::Chunk& destination) const;
  double bytes_of(const plan::Chunk& chunk) const;
  void touch(const plan::Chunk& chunk, bool writes, double step_bytes, ElementCost& cost) const;
  void use_memory(const plan::Chunk& chunk, double bytes, ElementCost& cost) const;

  Rank rank_;
  RoundShape shape_;
  std::size_t element_bytes_, partial_bytes_;
  bool one_buffer_;
  const HostModel& host_;
  const topology::Topology& topology_;
  double of_buffers_ = 0, of_scratch_ = 0;  ///< working sets, bytes
};

}  // namespace accord::sim
