#pragma once
// A collective as data: for each rank a small program of steps over chunks of memory.
//
// Memory. A plan sees these spaces on every rank, each cut into chunks:
//   input, output   the caller's buffers (the same memory when in place); chunk c is a range of elements, see
//                   bounds.hpp. A plan for buffers in windows (Buffers) also reads the input of peers, and reads and
//                   writes their output
//   scratch         slots in the rank's window that every peer can reach; chunk c holds one slice
//   partials        like scratch, for sums that are added to again: for a dtype that accumulates in a wider one (as
//                   16-bit floats in fp32) its elements have the wider dtype, so that a sum is rounded once, at its
//                   end
//   packets         like scratch, for small slices: each line carries its data and the round's sequence number
//                   together; chunks p, p + size, ... of a rank are put by rank p
//   multicast       like scratch, but peers reach it only on all ranks at once, through a switch between GPUs
//                   (NVSwitch), which writes a chunk on every rank, and reads the sum of the chunks of all ranks
//
// Rounds. A message larger than a slot runs as several rounds of the same program: round t handles slice t of every
// chunk. Each round has its own scratch, packets and signals: the executor keeps kRoundDepth copies of them and
// starts round k only when every rank has completed round k - kRoundDepth. A program therefore only has to be correct
// within one round. (The executor keeps more copies of packets and signals, and plans without scratch may have as
// many rounds in flight, see exec/window_layout.hpp.)
//
// Signals. Signal (from, to, id) is an event that happens once a round: everything that `from` did before it is
// visible to `to` after its wait. Packets are their own signal. Ids are counted from 0 for each ordered pair of
// ranks; a signal of a rank to itself connects two of its lanes.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "plan/collective.hpp"

namespace accord::plan {

/// Maximum number of rounds in flight at once; a power of two.
inline constexpr std::uint32_t kRoundDepth = 2;

enum class Space : std::uint8_t { kInput, kOutput, kScratch, kPackets, kPartials, kMulticast };

std::string_view to_string(Space space);

/// The rank of a multicast chunk that stands for the chunks of all ranks at once.
inline constexpr Rank kEveryRank = std::numeric_limits<Rank>::min();

/// One chunk of one space of one rank.
struct Chunk {
  Rank rank = 0;
  Space space = Space::kInput;
  int index = 0;
  bool operator==(const Chunk&) const = default;
};

/// "scratch[2] of rank 1".
std::string to_string(const Chunk& chunk);

/// The chunk itself, or, if it is one of every rank, the chunks of each of `size` ranks.
std::vector<Chunk> single_chunks(const Chunk& chunk, int size);

enum class StepKind : std::uint8_t {
  kCopy,         ///< every destination = source; the source or one destination may be a peer's scratch or partials
  kReduce,       ///< every destination = the canonical tree over the sources, in the listed order
  kSignal,       ///< signal `id` to `peer`
  kWait,         ///< wait for signal `id` of `peer`
  kPutPackets,   ///< source -> packets of `peer`
  kLaneBarrier,  ///< all lanes of this rank meet; each id occurs once in each of its lanes
};
inline constexpr int kStepKindCount = 6;

std::string_view to_string(StepKind kind);

/// One step. Rules for operands: a kCopy has at most one operand in a peer's scratch. The sources of a kReduce may be
/// in any peer's scratch and partials, its destinations in the rank's own output, scratch and partials. Partials are
/// for reductions, and for copies from partials to partials; a step that uses them reads no packets. Input is never
/// written, even in place. If the buffers are in windows, sources may be in peers' input and output and one
/// destination in a peer's output, for peers whose signal the lane has waited for in the round: the signal carries
/// the buffers' location. A kCopy or kReduce with a source in packets waits for those packets. Multicast of peers is
/// only accessed as that of every rank: a kCopy has it as one of its destinations, a kReduce as its only source and
/// then also as one of its destinations.
struct Step {
  StepKind kind = StepKind::kCopy;
  Rank peer = -1;                   ///< kSignal, kWait, kPutPackets
  int id = 0;                       ///< kSignal, kWait: the event; kLaneBarrier: which barrier
  std::vector<Chunk> destinations;  ///< one or two
  std::vector<Chunk> sources;       ///< kReduce: two or more, or one of every rank, see `Plan::order`
  bool operator==(const Step&) const = default;
};

/// "wait for signal 0 of rank 3".
std::string to_string(const Step& step);

/// Steps in order. The lanes of a rank run concurrently.
struct Lane {
  std::vector<Step> steps;
  bool operator==(const Lane&) const = default;
};

struct Program {
  std::vector<Lane> lanes;
  bool operator==(const Program&) const = default;
};

/// The order in which a plan adds.
enum class Order : std::uint8_t {
  kNone,  ///< it only moves bytes
  /// the balanced binary tree over the ranks, split at the largest power of two below n; fp32 between hops
  kCanonical,
  kFixed,   ///< for each chunk one tree of the plan's own, the same on all ranks and in every run; fp32 between hops
  kSwitch,  ///< the switch adds up each chunk once in an order that it does not report; rounded once
};

std::string_view to_string(Order order);

/// The guard that prevents a rank from starting round k before every rank has completed round k - kRoundDepth.
enum class Pacing : std::uint8_t {
  kByExecutor,  ///< the executor, which has to ask the peers
  kByPlan,      ///< the plan: by its waits, a rank that has completed a round knows that every rank has started it
};

std::string_view to_string(Pacing pacing);

/// Required location of the caller's buffers.
enum class Buffers : std::uint8_t {
  kAnywhere,        ///< each rank only touches its own
  kInWindows,       ///< in windows of the group on all ranks: ranks also touch those of peers
  kInWindowsApart,  ///< the same, and only correct if input and output are different memory
};

std::string_view to_string(Buffers buffers);

/// Described at the top of this file. A value; immutable once built (plan/builder.hpp) and verified
/// (plan/verifier.hpp).
struct Plan {
  std::string name;  ///< of the algorithm, e.g. "two_shot"
  Collective collective = Collective::kBarrier;
  int size = 0;   ///< ranks
  Rank root = 0;  ///< if the collective has one; kSendRecv: rank 0 sends to rank 1
  Order order = Order::kNone;
  Pacing pacing = Pacing::kByExecutor;
  Buffers buffers = Buffers::kAnywhere;
  /// Chunks of the caller's buffers: k if the buffer is not divided (collective.hpp), size * k if it is, of which
  /// chunks p * k ... p * k + k - 1 belong to rank p; none for a barrier.
  int input_chunks = 0;
  int output_chunks = 0;
  int scratch_chunks = 0;
  int packet_chunks = 0;
  int partial_chunks = 0;
  int multicast_chunks = 0;
  int signals = 0;                ///< maximum number of ids used between any pair
  std::uint64_t digest = 0;       ///< registered plans: distinguishes plans of one name; not in the JSON
  std::vector<Program> programs;  ///< by rank; empty for ranks that were not requested
  bool operator==(const Plan&) const = default;
};

/// `plan "two_shot" (all_reduce, 4 ranks)`.
std::string to_string(const Plan& plan);

/// True if ranks read or write the memory of others by address, which needs transports with mapped links. Equal on
/// all ranks, even if each holds only its own program.
bool needs_mapped_peers(const Plan& plan);

}  // namespace accord::plan
