#pragma once
// A collective as data: for each rank a small program of steps over chunks of memory.
//
// Memory. A plan sees five spaces on every rank, each cut into chunks:
//   input, output   the caller's buffers (the same memory when in place); chunk c is a range of elements, see bounds.hpp
//   scratch         slots in the rank's window that every peer can reach; chunk c holds one slice
//   partials        like scratch, for sums that go on to be added to: of a dtype that accumulates in a wider one (16-bit floats
//                   in fp32) its elements are of that, so that a sum is rounded once, at its end
//                   A plan for buffers in windows (Buffers) also reads the input, and reads and writes the output, of peers
//   packets         like scratch, for small slices: each line carries its data and the round's sequence number together;
//                   chunks p, p + size, ... of a rank are put by rank p
//   multicast       like scratch, but peers reach it only all at once, through a switch between GPUs (NVSwitch): it writes a chunk of
//                   every rank, and reads the sum of those of every rank
//
// Rounds. A message larger than a slot runs as several rounds of the same program: round t handles slice t of every chunk.
// Scratch, packets and signals of a round are its own: the executor keeps kRoundDepth copies of them and starts round
// k only when every rank has completed round k - kRoundDepth. So a program only has to be right within one round. (Of packets and
// signals it keeps more, and plans without scratch may have as many rounds under way, see exec/window_layout.hpp.)
//
// Signals. Signal (from, to, id) is an event that happens once a round: whatever `from` did before is visible to
// `to` after its wait. Packets are their own signal. Ids are counted from 0 for each ordered pair of ranks; a signal of a
// rank to itself goes from one of its lanes to another.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "plan/collective.hpp"

namespace accord::plan {

/// How many rounds may be under way at once; a power of two.
inline constexpr std::uint32_t kRoundDepth = 2;

enum class Space : std::uint8_t { kInput, kOutput, kScratch, kPackets, kPartials, kMulticast };

std::string_view to_string(Space space);

/// As the rank of a multicast chunk: those of all ranks at once.
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

/// The chunk itself, or where it is one of every rank, those of each of `size`.
std::vector<Chunk> single_chunks(const Chunk& chunk, int size);

enum class StepKind : std::uint8_t {
  kCopy,         ///< every destination = source; the source or one destination may be a peer's scratch or partials
  kReduce,       ///< every destination = the canonical tree over the sources, listed in its order
  kSignal,       ///< signal `id` to `peer`
  kWait,         ///< wait for signal `id` of `peer`
  kPutPackets,   ///< source -> packets of `peer`
  kLaneBarrier,  ///< all lanes of this rank meet; each id once in each of its lanes
};
inline constexpr int kStepKindCount = 6;

std::string_view to_string(StepKind kind);

/// One step. Who may be touched: a kCopy has at most one operand in a peer's scratch; the sources of a kReduce may lie in any
/// peer's scratch and partials, its destinations in the rank's own output, scratch and partials. Partials are for reductions,
/// and copies from partials to partials; a step that has them reads no packets. Input is never written, also when in place.
/// If the buffers lie in windows, sources may be in peers' input and output and one destination in a peer's output, of peers whose
/// signal the lane has waited for in the round: it tells where they are.
/// A kCopy or kReduce whose source is in packets waits for those packets.
/// Multicast of peers is touched as that of every rank only: a kCopy has it as one of its destinations, a kReduce
/// as its only source and then as one of its destinations, too.
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

/// Steps in order. Lanes of a rank run at the same time.
struct Lane {
  std::vector<Step> steps;
  bool operator==(const Lane&) const = default;
};

struct Program {
  std::vector<Lane> lanes;
  bool operator==(const Program&) const = default;
};

/// How a plan adds up.
enum class Order : std::uint8_t {
  kNone,       ///< it moves bytes only
  kCanonical,  ///< the balanced binary tree over the ranks, split at the largest power of two below n; fp32 between hops
  kFixed,      ///< for each chunk one tree of the plan's own, the same on all ranks and in every run; fp32 between hops
  kSwitch,  ///< each chunk once, as the switch adds up what multicast reads, which does not say in what order; rounded once
};

std::string_view to_string(Order order);

/// Who keeps a rank from starting round k before every rank has completed round k - kRoundDepth.
enum class Pacing : std::uint8_t {
  kByExecutor,  ///< the executor, which has to ask the peers
  kByPlan,      ///< the plan: a rank that has completed a round knows by its waits that every rank has started it
};

std::string_view to_string(Pacing pacing);

/// Where the caller's buffers have to lie.
enum class Buffers : std::uint8_t {
  kAnywhere,        ///< each rank touches its own only
  kInWindows,       ///< on all ranks in windows of the group: ranks touch those of peers too
  kInWindowsApart,  ///< the same, and right only if input and output are not the same memory
};

std::string_view to_string(Buffers buffers);

/// See the head of this file. A value; immutable once built (plan/builder.hpp) and checked (plan/verifier.hpp).
struct Plan {
  std::string name;  ///< of the algorithm, e.g. "two_shot"
  Collective collective = Collective::kBarrier;
  int size = 0;   ///< ranks
  Rank root = 0;  ///< where the collective has one; kSendRecv: rank 0 sends to rank 1
  Order order = Order::kNone;
  Pacing pacing = Pacing::kByExecutor;
  Buffers buffers = Buffers::kAnywhere;
  /// Chunks of the caller's buffers: k of one that is not divided (collective.hpp), size * k of one that is, of which chunks
  /// p * k ... p * k + k - 1 are rank p's; barrier: none.
  int input_chunks = 0;
  int output_chunks = 0;
  int scratch_chunks = 0;
  int packet_chunks = 0;
  int partial_chunks = 0;
  int multicast_chunks = 0;
  int signals = 0;                ///< ids used between any one pair, at most
  std::uint64_t digest = 0;       ///< of a registered plan: tells plans of one name apart. Not in its JSON
  std::vector<Program> programs;  ///< by rank; those not asked for are empty
  bool operator==(const Plan&) const = default;
};

/// `plan "two_shot" (all_reduce, 4 ranks)`.
std::string to_string(const Plan& plan);

/// True if ranks read or write the memory of others by address: needs transports whose links are mapped. Equal on all ranks,
/// also where each holds its own program only.
bool needs_mapped_peers(const Plan& plan);

}  // namespace accord::plan
