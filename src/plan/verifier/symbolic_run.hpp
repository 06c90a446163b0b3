#pragma once
// Runs a plan on terms instead of numbers.

#include <map>
#include <tuple>
#include <vector>

#include "plan/plan.hpp"
#include "plan/verifier.hpp"
#include "plan/verifier/clocks.hpp"
#include "plan/verifier/expression.hpp"
#include "plan/verifier/memory.hpp"
#include "plan/walk.hpp"

namespace accord::plan {

/// What happens before a put of packets is known to the reader of the packets, or only the put itself.
enum class PacketOrder : std::uint8_t { kOfAll, kOfPackets };

/// Checks all rounds of a plan that passed check_pairing(): no deadlock, no race, no read of unwritten memory, equal
/// lengths within each step, correct outputs, no access to a rank's buffers after it has ended its round; and for
/// barriers, and whenever the gate is open, that all ranks meet in a round.
class SymbolicRun : private StepVisitor {
 public:
  /// `plan` must outlive it. `gate`: open to prove that the plan paces itself. `packet_order`: if it is kOfPackets, the
  /// plan must have passed with kOfAll.
  SymbolicRun(const Plan& plan, Aliasing aliasing, RoundGate gate, PacketOrder packet_order = PacketOrder::kOfAll);
  /// kInvalidArgument names the step.
  Status check();

 private:
  // The data that a step moves.
  struct Value {
    Term term = Term::kUnknown;
    int length_class = 0;
    bool rounded = false;  // see Cell
  };
  // An event between ranks: round, from, to, id. For packets: round, owner, 0, index.
  using EventKey = std::tuple<int, Rank, Rank, int>;

  void begin_round(int lane, int round) override;
  void arrive(int lane, int round, const StepPlace& place, const Step& barrier) override;
  Status step(int lane, int round, const StepPlace& place, const Step& step) override;
  void end_round(int lane, int round) override;

  // Whether the run with kOfAll has checked the accesses to the chunk.
  bool is_checked(const Chunk& chunk) const {
    return chunk.space == Space::kPackets && packet_order_ == PacketOrder::kOfPackets;
  }
  Status move(const Access& access, const Step& step);
  Result<Value> read_sources(const Access& access, const Step& step);
  Status write_destinations(const Access& access, const Step& step, const Value& value);

  void note_visits(const Access& access, const Step& step);
  Status check_visits() const;
  Status check_outputs();
  Status check_all_arrived() const;

  Status error(const StepPlace& place, std::string_view problem) const;
  Status race_error(const Access& access, const Chunk& chunk, const Access& other) const;
  Status unwritten_error(const Access& access, const Chunk& chunk) const;
  Status output_error(const Chunk& chunk, int round, Term wanted);

  Rank rank_of(int lane) const { return ranks_[static_cast<std::size_t>(lane)]; }
  std::size_t end_of(int round, Rank rank) const {
    return static_cast<std::size_t>(round) * static_cast<std::size_t>(plan_.size) + static_cast<std::size_t>(rank);
  }

  const Plan& plan_;
  RoundGate gate_;
  PacketOrder packet_order_;
  Expressions expressions_;
  Memory memory_;
  std::vector<Rank> ranks_;  // by lane
  Clocks clocks_;
  // The clocks when a signal was sent, packets were put, and lanes arrived at a barrier (round, rank, id).
  std::map<EventKey, Moment> signals_;
  std::map<EventKey, Moment> packets_;
  std::map<std::tuple<int, Rank, int>, Clock> barriers_;
  std::vector<Clock> rank_ends_;         // by round and rank
  std::vector<Clock> all_ends_;          // by round
  std::vector<std::size_t> lanes_left_;  // by round: lanes that have not ended it
  std::vector<Epoch> starts_;            // of round 0, by lane
  // Accesses to peers' input and output.
  struct Visit {
    Access access;
    Chunk chunk;
  };
  std::vector<Visit> visits_;
};

}  // namespace accord::plan
