#pragma once
// What an execution plan does with its data: every value that is ever in a cell, and who makes and uses it.

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "plan/mscclpp.hpp"
#include "plan/mscclpp/read.hpp"

namespace accord::plan::mscclpp {

/// What a cell holds from one write to the next.
struct Value {
  Cell cell;
  int input_chunk = -1;     ///< of the cell's rank, of which this is the first content
  int copy_of = -1;         ///< the value that it is a copy of
  bool in_packets = false;  ///< whoever reads it waits for it
  bool is_last = true;      ///< nothing is written over it
  Rank writer = -1;
  int writer_lane = -1;
  Rank first_rank = 0;                    ///< the lowest rank that contributes to it
  std::string place = {};                 ///< of the op that makes it
  std::vector<std::size_t> readers = {};  ///< of steps
};

/// One thing that a lane does.
struct FlowStep {
  /// kSwitch: one source, or the sum over those of all ranks, to one cell of each.
  enum class Kind : std::uint8_t { kCopy, kReduce, kSwitch, kSignal, kWait, kMeet } kind = Kind::kCopy;
  Rank rank = 0;
  int lane = 0;
  std::vector<int> sources = {};     ///< values
  int destination = -1;              ///< a value; of kSwitch that of its own rank
  std::vector<int> everywhere = {};  ///< of kSwitch: values, by rank
  int event = -1;                    ///< kSignal, kWait: an event; kMeet: a meeting
  std::string place = {};
};

/// Between two lanes. Events that nobody waits for are dropped.
struct Event {
  Rank from = 0;
  Rank to = 0;
  bool awaited = false;
};

/// Lanes of one rank meet.
struct Meeting {
  Rank rank = 0;
  std::vector<int> lanes;
};

struct Flow {
  std::vector<Value> values;
  std::vector<FlowStep> steps;  ///< in an order in which they may run
  std::vector<Event> events;
  std::vector<Meeting> meetings;
};

/// Runs the ops in some order. kCorrupt names the op that waits for ever, or that reads what nobody has written. What goes through a switch to packets, or
/// not among all ranks, or all of it if `ops` says so, is copies and sums like others.
Result<Flow> flow_of(const ExecutionPlan& plan, SwitchOps ops);

}  // namespace accord::plan::mscclpp
