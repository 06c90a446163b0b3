#pragma once
// The data flow of an execution plan: every value that a cell ever holds, and its producers and consumers.

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "plan/mscclpp.hpp"
#include "plan/mscclpp/read.hpp"

namespace accord::plan::mscclpp {

/// The content of a cell from one write to the next.
struct Value {
  Cell cell;
  int input_chunk = -1;     ///< the chunk of the rank's input that this is the initial content of
  int copy_of = -1;         ///< the value that it is a copy of
  bool in_packets = false;  ///< its readers wait for it
  bool is_last = true;      ///< never overwritten
  Rank writer = -1;
  int writer_lane = -1;
  Rank first_rank = 0;                    ///< the lowest rank that contributes to it
  std::string place = {};                 ///< of the op that produces it
  std::vector<std::size_t> readers = {};  ///< indexes of steps
};

/// One action of a lane.
struct FlowStep {
  /// kSwitch: one source, or the sum of the sources of all ranks, to one cell of each rank.
  enum class Kind : std::uint8_t { kCopy, kReduce, kSwitch, kSignal, kWait, kBarrier } kind = Kind::kCopy;
  Rank rank = 0;
  int lane = 0;
  std::vector<int> sources = {};     ///< values
  int destination = -1;              ///< a value; for kSwitch the value of its own rank
  std::vector<int> everywhere = {};  ///< kSwitch: values, by rank
  int event = -1;                    ///< kSignal, kWait: an event; kBarrier: a barrier
  std::string place = {};
};

/// A signal between two lanes. Events that nobody awaits are dropped.
struct Event {
  Rank from = 0;
  Rank to = 0;
  bool awaited = false;
};

/// A barrier of lanes of one rank.
struct LaneBarrier {
  Rank rank = 0;
  std::vector<int> lanes;
};

struct Flow {
  std::vector<Value> values;
  std::vector<FlowStep> steps;  ///< in a possible execution order
  std::vector<Event> events;
  std::vector<LaneBarrier> barriers;
};

/// Runs the ops in some order. kCorrupt names the op that waits forever or reads unwritten data. Switch operations to
/// packets or among only some ranks, or all of them if `ops` says so, become ordinary copies and sums.
Result<Flow> flow_of(const ExecutionPlan& plan, SwitchOps ops);

}  // namespace accord::plan::mscclpp
