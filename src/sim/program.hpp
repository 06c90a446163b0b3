#pragma once
// A rank's part of a plan, prepared for a simulation: operations with their costs on a machine.

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "exec/request_record.hpp"
#include "plan/algorithms.hpp"
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
  kCompute,  ///< anything else that a rank does
};

/// "send".
std::string_view to_string(OpKind kind);

inline constexpr std::uint32_t kNone = 0xffffffff;

/// Costs are linear in the elements of a round.
struct Op {
  OpKind kind = OpKind::kWork;
  bool is_remote = false;          ///< kNotify, kWait: between hosts
  Rank peer = -1;                  ///< kSend, kNotify
  std::uint32_t event = kNone;     ///< kSend, kNotify, kWait; kBarrier: its number in the rank
  std::uint32_t channel = kNone;   ///< kSend, kNotify between hosts
  std::uint64_t length = 0;        ///< elements over all rounds
  double seconds = 0;              ///< of the processor, in each round
  double seconds_per_element = 0;  ///< in addition
  double bytes_per_element = 0;    ///< kSend: sent; kWork: read and written in memory, outside the caches
  bool operator==(const Op&) const = default;
};

using Lane = std::vector<Op>;
using Program = std::vector<Lane>;

/// Elements of a step in a round of a call.
inline std::uint64_t elements_of(const Op& op, std::uint64_t slice, std::uint64_t round) {
  const std::uint64_t done = round * slice;
  return op.length <= done ? 0 : std::min(op.length - done, slice);
}

inline double seconds_of(const Op& op, std::uint64_t elements) {
  return op.seconds + op.seconds_per_element * static_cast<double>(elements);
}
inline double bytes_of(const Op& op, std::uint64_t elements) {
  return op.bytes_per_element * static_cast<double>(elements);
}

/// Between ranks of different hosts.
struct Channel {
  Rank from = 0, to = 0;
};

/// The programs of the first ranks, of which each stands for others: rank r does as rank r modulo their number, with
/// all ranks shifted by as many. Usually they are all ranks.
struct Programs {
  std::vector<Program> programs;  ///< by rank; each has a lane, if only an empty one
  int ranks = 0;                  ///< all of them
  std::uint32_t events = 0;       ///< numbered from 0; those of the first ranks
  std::vector<Channel> channels;  ///< by number, those that begin at the first ranks
  std::uint64_t slice = 1;        ///< elements of a chunk in each round but the last
  std::uint64_t rounds = 1;       ///< of a call
  std::uint64_t calls = 1;        ///< made one after the other
  std::uint32_t depth = 1;        ///< rounds that may be in flight, see plan.hpp
  bool waits_for_rounds = false;  ///< a rank waits until all ranks have completed the round `depth` before
};

/// A call, as the executor gets it.
struct Call {
  exec::RequestRecord request;
  std::size_t slot_bytes = 0;  ///< the scratch of a round
  std::uint64_t times = 1;     ///< it is made so often: a rank begins the next call as soon as it has ended one
};

/// Prepares the programs of all ranks of a plan. Errors: those of exec::rounds_of().
Result<Programs> programs_of(const plan::Plan& plan, const Call& call, const Machine& machine,
                             const topology::Topology& topology);

/// The same for an algorithm. With `may_fold`, only the programs of the ranks of symmetric_hosts(), if those of
/// other ranks are found to be the same: of all ranks up to 4096, of three times as many as there are first ranks
/// beyond. Costs the time to make these programs, but not their memory.
Result<Programs> programs_of(const plan::AlgorithmEntry& algorithm, const Call& call, const Machine& machine,
                             const topology::Topology& topology, bool may_fold);

}  // namespace accord::sim
