#pragma once
// An execution plan of MSCCL++ with its indirections resolved: the actions of each thread block, and the memory they
// use.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "plan/collective.hpp"

namespace accord::plan::mscclpp {

enum class Memory : std::uint8_t { kInput, kOutput, kScratch };

/// "i", "o" or "s", as in the format.
std::string_view to_string(Memory memory);

/// One chunk of one memory of one rank.
struct Cell {
  Rank rank = 0;
  Memory memory = Memory::kInput;
  int index = 0;
  auto operator<=>(const Cell&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees a 0 in it
};

/// Consecutive chunks.
struct Span {
  Cell first;
  int size = 1;
  std::vector<Rank> ranks = {};  ///< switch channel: the ranks whose chunks at this place are meant, all at once
};

enum class Action : std::uint8_t { kNothing, kMove, kReduce, kSignal, kWait, kBarrier, kAcquire, kRelease };

/// One end of a connection: the nth channel to a peer, which pairs with the peer's nth channel back.
struct Channel {
  std::string type;  ///< "memory" or "port"
  Rank peer = 0;
  int nth = 0;
};

/// Memory at one place of several ranks that a switch reaches at once.
struct SwitchChannel {
  Memory memory = Memory::kInput;
  std::vector<Rank> ranks = {};
};

/// Properties of an operation, by its name.
struct OpKind {
  std::string_view name;
  Action action = Action::kNothing;
  bool first_source_remote = false;
  bool sources_in_packets = false;  ///< those after the first, or the only one
  bool other_sources_remote = false;
  int local_destinations = 0;  ///< number of local destinations, which come first; remote ones follow if `sends`
  bool sends = false;
  bool into_packets = false;  ///< all destinations except the first local one of a reduction
  bool from_switch = false;   ///< its source is the sum over a switch channel
  bool to_switch = false;     ///< its destination is a switch channel
  bool signals = false;       ///< afterwards, over its channels
};

struct Op {
  const OpKind* kind = nullptr;
  std::string place;  ///< "gpus[0].threadblocks[1].ops[2]"
  std::vector<Span> sources = {};
  std::vector<Span> destinations = {};
  std::vector<Channel> channels = {};
  std::vector<int> semaphores = {};
  int barrier = 0;
  int barrier_lanes = 0;
};

struct Gpu {
  std::vector<std::vector<Op>> lanes;
  std::vector<int> semaphores;  ///< initial values
};

struct ExecutionPlan {
  std::string name;
  Collective collective = Collective::kAllReduce;
  bool in_place = false;
  int input_chunks = 0;
  int output_chunks = 0;
  bool has_switch_ops = false;
  std::vector<Gpu> gpus;

  int size() const { return static_cast<int>(gpus.size()); }
};

/// See import_mscclpp().
Result<ExecutionPlan> read(std::string_view text);

}  // namespace accord::plan::mscclpp
