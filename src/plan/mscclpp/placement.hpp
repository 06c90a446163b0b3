#pragma once
// Where the values of a flow lie in a plan.

#include <map>
#include <optional>
#include <vector>

#include "plan/builder.hpp"
#include "plan/mscclpp/emit.hpp"

namespace accord::plan::mscclpp {

/// How a value that is in packets gets to those who read it.
enum class Arrival : std::uint8_t {
  kNone,     ///< it is ordered by signals of the plan
  kPackets,  ///< as packets of ours
  kEvent,    ///< by a signal from its writer
};

/// Peers can reach scratch and partials only. So what a peer reads or writes lies in scratch; a sum that is added to again lies in
/// partials, and its copies are the sum itself, read where it lies.
class Placement {
 public:
  Placement(const ExecutionPlan& plan, const Flow& flow, const EmitOptions& options);

  /// kUnsupported names the op.
  Status check() const;

  int origin(int value) const { return origins_[static_cast<std::size_t>(value)]; }
  /// A sum that is added to again, or a copy of one.
  bool is_partial(int value) const { return partial_[static_cast<std::size_t>(origin(value))]; }
  /// The chunk of multicast memory that all ranks have it or its like in; REQUIRES: lies_in_multicast().
  int multicast_of(int value) const { return multicast_[static_cast<std::size_t>(value)]; }
  /// Written by a switch, or added up by one.
  bool lies_in_multicast(int value) const { return multicast_of(value) >= 0; }
  /// A copy that needs no step, as the sum is read where it lies.
  bool is_alias(int value) const { return is_partial(value) && origin(value) != value; }
  Arrival arrival(int value) const;
  /// Read once, by a step of ours that can read packets.
  bool is_read_from_packets(int value) const;

  /// Where a step of `rank` finds it, packets aside.
  Chunk place(int value, Rank rank);
  /// Where its maker puts it; for packets, where they are copied to.
  std::vector<Chunk> destinations(int value);
  /// Copies to be made before everything else, or after it, by the rank that has the cell.
  std::optional<std::pair<Chunk, std::vector<Chunk>>> copy_before(int value);
  std::optional<std::pair<Chunk, std::vector<Chunk>>> copy_after(int value);
  Chunk packets(int value);

  /// Of the places given so far.
  Shape shape() const;

 private:
  const Value& at(int value) const { return flow_.values[static_cast<std::size_t>(value)]; }
  bool is_input(int value) const { return at(value).input_chunk >= 0; }
  bool is_result(int value) const { return at(value).is_last && at(value).cell.memory == Memory::kOutput; }
  bool is_read_by_peers(int value) const;
  bool is_by_switch(int value) const { return by_switch_[static_cast<std::size_t>(value)]; }
  bool lies_in_scratch(int value) const;
  bool lies_in_output(int value) const;
  Chunk scratch_of(const Cell& cell);
  /// Gives the values, one of each rank, their chunk of multicast memory.
  void place_in_multicast(const std::vector<int>& values, const std::string& place);

  const ExecutionPlan& plan_;
  const Flow& flow_;
  EmitOptions options_;
  std::vector<int> origins_;
  std::vector<bool> partial_;  // by origin
  std::vector<bool> is_sum_;
  std::vector<int> multicast_;                         // by value; -1: none
  std::vector<bool> by_switch_;                        // by value
  std::map<std::pair<Memory, int>, int> multicasts_;   // chunks, by where all ranks have it
  Status uneven_ = {};                                 // of ranks that do not have it at one place
  std::vector<std::map<Cell, int>> scratch_;           // by rank
  std::vector<std::map<int, int>> partials_;           // by rank: origin to chunk
  std::map<int, int> packets_;                         // value to chunk
  std::map<std::pair<Rank, Rank>, int> packet_count_;  // to, from
};

}  // namespace accord::plan::mscclpp
