#pragma once
// A record of all that happened in a simulation, and why it did not happen earlier.

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/program.hpp"

namespace accord::sim {

/// The reason why an operation begins when it does.
enum class Reason : std::uint8_t {
  kOrder,      ///< the operation before it in its lane, or the task before it
  kProcessor,  ///< another lane of the rank used the processor
  kBarrier,    ///< the last lane of the rank to come to a barrier
  kSignal,     ///< a signal or packets of a rank of the same host
  kMessage,    ///< data or a signal of another host
  kRound,      ///< the last rank to complete an earlier round, and the look at all ranks' rounds
  kCore,       ///< another rank had the core
};

/// "message".
std::string_view to_string(Reason reason);

/// A time, and the journal's entry that made it so late.
struct Moment {
  double time = 0;
  std::uint32_t entry = kNone;
  Reason reason = Reason::kOrder;

  void wait_for(const Moment& other) {
    if (other.time > time) *this = other;
  }
};

/// An operation that took place. Times are in seconds.
struct JournalEntry {
  double begin = 0, end = 0;
  double bytes = 0;  ///< sent, or read and written outside the caches
  Rank rank = 0;
  Rank peer = -1;               ///< kSend, kNotify: a rank of the group of the call
  std::uint32_t lane = 0;       ///< of the rank in the call
  std::uint32_t task = 0;       ///< of the schedule
  std::uint32_t round = 0;      ///< of the call
  std::uint32_t cause = kNone;  ///< the entry that it waited for last; kNone: the beginning
  Reason reason = Reason::kOrder;
  OpKind kind = OpKind::kWork;
};

/// Bytes of a message that were under way over the links between hosts.
struct JournalTransfer {
  double begin = 0, end = 0;
  double bytes = 0;
  std::uint32_t route = 0;  ///< of Journal::routes
};

struct Journal {
  std::vector<JournalEntry> entries;  ///< in the order in which they began
  std::vector<JournalTransfer> transfers;
  std::vector<std::vector<std::int32_t>> routes;  ///< links of the network
};

}  // namespace accord::sim
