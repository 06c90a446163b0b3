#pragma once
// A call that runs in virtual time: its members, events and rounds.

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/rounding.hpp"
#include "sim/journal.hpp"
#include "sim/schedule.hpp"

namespace accord::sim {

class CallState;

/// A rank's part of a call, or its operations outside calls. Rounds are counted over all of Programs::calls.
struct MemberState {
  CallState* call = nullptr;
  Rank member = 0;  // its rank in the call
  Rank rank = 0;
  std::uint32_t stream = 0;  // of all ranks
  std::uint32_t task = kNone;
  std::uint64_t round = 0;
  std::size_t lanes_left = 0;  // of the round
  Moment round_end{};
  std::vector<std::uint32_t> lanes{};
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> barriers{};  // lanes that have arrived
};

/// The lane that waits for an event, or the moment at which it happened.
struct Arrival {
  static constexpr std::uint64_t kNoRound = ~std::uint64_t{0};
  std::uint64_t round = kNoRound;
  Moment moment;
  std::uint32_t lane = kNone;
  std::uint64_t lane_round = 0;
};

struct RoundState {
  std::uint64_t round = 0;
  std::size_t completed = 0;          // members
  Moment moment;                      // of the last one
  std::vector<MemberState*> waiting;  // to begin the round that needs this one
};

/// An event happens once a round. Its place is used again `depth` rounds later, as in the executor.
class CallState {
 public:
  CallState(std::uint32_t number, const Programs& its_programs, std::size_t member_count)
      : programs(its_programs),
        id(number),
        all_rounds(programs.rounds * programs.calls),
        members(member_count),
        channels(programs.channels.size(), kNone),
        slots_(std::min<std::uint64_t>(programs.depth, all_rounds)),
        arrivals_(programs.events * slots_),
        rounds_(2 * static_cast<std::size_t>(slots_) + 1) {}

  Arrival& arrival(std::uint32_t event, std::uint64_t round) { return arrivals_[event * slots_ + round % slots_]; }

  RoundState& round_state(std::uint64_t round) {
    RoundState& state = rounds_[static_cast<std::size_t>(round % rounds_.size())];
    if (state.round != round) {
      state.round = round;
      state.completed = 0;
      state.moment = {};
      state.waiting.clear();
    }
    return state;
  }

  const Program& program_of(const MemberState& member) const { return programs.programs[to_size(member.member)]; }

  const Programs& programs;
  const std::uint32_t id;
  const std::uint64_t all_rounds;
  std::vector<MemberState> members;
  std::vector<std::uint32_t> channels;  // of messages; kNone: not open yet
  std::size_t ended = 0;                // members

 private:
  std::uint64_t slots_;
  std::vector<Arrival> arrivals_;
  std::vector<RoundState> rounds_;  // those of the slowest member's gate to those of the fastest member
};

}  // namespace accord::sim
