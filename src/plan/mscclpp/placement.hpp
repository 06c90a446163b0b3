#pragma once
// Assigns the values of a flow to memory of a plan.

#include <map>
#include <optional>
#include <vector>

#include "plan/builder.hpp"
#include "plan/mscclpp/emit.hpp"

namespace accord::plan::mscclpp {

/// How a value in packets reaches its readers.
enum class Arrival : std::uint8_t {
  kNone,     ///< ordered by signals of the plan
  kPackets,  ///< as our packets
  kEvent,    ///< by a signal from its writer
};

/// Peers can only reach scratch and partials. Data that a peer reads or writes are therefore in scratch; a sum that
/// is added to again is in partials, and its copies are the sum itself, read in place.
class Placement {
 public:
  Placement(const ExecutionPlan& plan, const Flow& flow, const EmitOptions& options);

  /// kUnsupported names the op.
  Status check() const;

  int origin(int value) const { return origins_[static_cast<std::size_t>(value)]; }
  /// A sum that is added to again, or a copy of one.
  bool is_partial(int value) const { return partial_[static_cast<std::size_t>(origin(value))]; }
  /// The multicast chunk in which all ranks have the value or its counterpart. REQUIRES: is_in_multicast().
  int multicast_of(int value) const { return multicast_[static_cast<std::size_t>(value)]; }
  /// Written or added up by a switch.
  bool is_in_multicast(int value) const { return multicast_of(value) >= 0; }
  /// A copy that needs no step, since the sum is read in place.
  bool is_alias(int value) const { return is_partial(value) && origin(value) != value; }
  Arrival arrival(int value) const;
  /// Read once, by one of our steps that can read packets.
  bool is_read_from_packets(int value) const;

  /// Where a step of `rank` finds it, apart from packets.
  Chunk place(int value, Rank rank);
  /// Where its producer stores it; for packets, where they are copied to.
  std::vector<Chunk> destinations(int value);
  /// Copies to be made before or after all other steps by the rank that owns the cell.
  std::optional<std::pair<Chunk, std::vector<Chunk>>> copy_before(int value);
  std::optional<std::pair<Chunk, std::vector<Chunk>>> copy_after(int value);
  Chunk packets(int value);

  /// Covers the places assigned so far.
  Shape shape() const;

 private:
  const Value& at(int value) const { return flow_.values[static_cast<std::size_t>(value)]; }
  bool is_input(int value) const { return at(value).input_chunk >= 0; }
  bool is_result(int value) const { return at(value).is_last && at(value).cell.memory == Memory::kOutput; }
  bool is_read_by_peers(int value) const;
  bool is_by_switch(int value) const { return by_switch_[static_cast<std::size_t>(value)]; }
  bool is_in_scratch(int value) const;
  bool is_in_output(int value) const;
  Chunk scratch_of(const Cell& cell);
  /// Assigns a multicast chunk to the values, one per rank.
  void place_in_multicast(const std::vector<int>& values, const std::string& place);

  const ExecutionPlan& plan_;
  const Flow& flow_;
  EmitOptions options_;
  std::vector<int> origins_;
  std::vector<bool> partial_;  // by origin
  std::vector<bool> is_sum_;
  std::vector<int> multicast_;                         // by value; -1: none
  std::vector<bool> by_switch_;                        // by value
  std::map<std::pair<Memory, int>, int> multicasts_;   // chunks, by their common location on all ranks
  Status place_error_ = {};                            // error if ranks do not have it at one location
  std::vector<std::map<Cell, int>> scratch_;           // by rank
  std::vector<std::map<int, int>> partials_;           // by rank: origin to chunk
  std::map<int, int> packets_;                         // value to chunk
  std::map<std::pair<Rank, Rank>, int> packet_count_;  // to, from
};

}  // namespace accord::plan::mscclpp
