#pragma once
// A rank's part of a plan, prepared for a simulation: operations with their costs on a machine.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "exec/request_record.hpp"
#include "plan/plan.hpp"
#include "sim/machine.hpp"
#include "topology/topology.hpp"

namespace accord::sim {

enum class OpKind : std::uint8_t {
  kWork,     ///< copies and reductions in the memory of the host
  kSend,     ///< data to a rank of another host, and an event if it is one of packets
  kNotify,   ///< an event for another rank or lane: a signal, or packets in the memory of the host
  kWait,     ///< for an event
  kBarrier,  ///< of the lanes of the rank
};

inline constexpr std::uint32_t kNoEvent = 0xffffffff;

/// Costs are linear in the elements of a round.
struct Op {
  OpKind kind = OpKind::kWork;
  bool is_remote = false;          ///< kNotify, kWait: between hosts
  Rank peer = -1;                  ///< kSend, kNotify
  std::uint32_t event = kNoEvent;  ///< kSend, kNotify, kWait; kBarrier: its number in the rank
  std::uint64_t length = 0;        ///< elements over all rounds
  double seconds = 0;              ///< of the processor, in each round
  double seconds_per_element = 0;  ///< in addition
  double bytes_per_element = 0;    ///< kSend: sent; kWork: read and written in memory
};

struct Program {
  std::vector<std::vector<Op>> lanes;
  std::uint64_t slice = 1;  ///< elements of a chunk in each round but the last
  std::uint64_t rounds = 1;
  std::uint32_t depth = 1;        ///< rounds that may be in flight, see plan.hpp
  bool waits_for_rounds = false;  ///< a rank waits until all ranks have completed the round `depth` before
};

/// Elements of a step in a round.
inline std::uint64_t elements_of(const Program& program, const Op& op, std::uint64_t round) {
  const std::uint64_t done = round * program.slice;
  return op.length <= done ? 0 : std::min(op.length - done, program.slice);
}

struct Programs {
  std::vector<Program> programs;  ///< by rank
  std::uint32_t events = 0;       ///< events are numbered from 0
};

/// Prepares the programs of all ranks. `slot_bytes`: the scratch of a round, as for exec::lower(), whose errors this
/// has.
Result<Programs> programs_of(const plan::Plan& plan, const exec::RequestRecord& request, std::size_t slot_bytes,
                             const Machine& machine, const topology::Topology& topology);

}  // namespace accord::sim
