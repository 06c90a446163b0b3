#pragma once
// Runs plans on real numbers, step by step, in any order that the executor might: the reference that plans are held against. It
// knows nothing of the verifier. Each operand of a step is read or written by an action of its own, so that two lanes
// that touch one chunk at the same time can be seen to disturb each other.

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "plan/bounds.hpp"
#include "plan/plan.hpp"
#include "plan/verifier.hpp"

namespace accord::plan::testing {

using Number = std::int64_t;
/// How two numbers become one: a sum, or something that shows the order as well.
using Combine = Number (*)(Number, Number);

struct MachineRequest {
  Aliasing aliasing = Aliasing::kOutOfPlace;
  std::size_t count = 0;  ///< as for bounds_of()
  std::size_t element_bytes = 8;
  std::size_t slice = 1;  ///< elements of a chunk that a round handles
  Combine combine = nullptr;
};

/// The ranks' memory and how far their lanes have come. A value: copy it to try two ways.
class Machine {
 public:
  Machine(const Plan& plan, const MachineRequest& request);

  int lanes() const { return static_cast<int>(lanes_.size()); }
  bool done(int lane) const { return lanes_[static_cast<std::size_t>(lane)].round == rounds_; }
  bool all_done() const;
  /// Does one action of `lane`; false if it has to wait.
  bool advance(int lane);
  /// True if every rank's output is what the collective asks for; of a barrier, if nobody left before all had come.
  bool outputs_right() const;
  /// Everything that decides what may still happen.
  std::vector<Number> state() const;

  /// The number that rank `rank` has at place `i` of its input.
  static Number input_value(Rank rank, std::size_t i) {
    return (rank + 1) * 1000003LL + static_cast<Number>(i) * 7 + 1;
  }

 private:
  struct Lane {
    Rank rank = 0;
    int lane = 0;
    int round = 0;
    int step = 0;
    int action = 0;
    std::vector<std::vector<Number>> registers;
  };
  struct Place {  // where a chunk's slice lies, and how much of it there is
    std::vector<Number>* memory = nullptr;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  Place place_of(const Chunk& chunk, int round, std::size_t step_elements);
  std::size_t elements_of(const Step& step, int round) const;
  std::vector<Number> combined(const std::vector<std::vector<Number>>& sources) const;
  bool is_visit_in_time(const Lane& lane, const Chunk& chunk) const;
  bool all_came(int round) const;
  bool may_begin(const Lane& lane) const;
  bool may_read(const Lane& lane, const Chunk& chunk) const;
  std::vector<Chunk> each_of(const std::vector<Chunk>& chunks) const;
  bool advance_movement(Lane& lane, const Step& step);
  void next_step(Lane& lane);
  Number expected(Rank rank, std::size_t i) const;

  const Plan* plan_;
  MachineRequest request_;
  Bounds bounds_;
  int rounds_ = 1;
  bool strayed_ = false;     // a rank touched the buffers of one that was not in its call
  bool left_early_ = false;  // somebody left a barrier before all had come
  std::vector<Lane> lanes_;
  std::vector<std::vector<Number>> inputs_, outputs_;                    // in place: outputs_ hold both
  std::map<std::tuple<Rank, int, int>, std::vector<Number>> scratch_;    // owner, chunk, slot
  std::map<std::tuple<Rank, int, int>, std::vector<Number>> packets_;    // owner, chunk, slot
  std::map<std::tuple<Rank, int, int>, std::vector<Number>> partials_;   // owner, chunk, slot
  std::map<std::tuple<Rank, int, int>, std::vector<Number>> multicast_;  // owner, chunk, slot
  std::map<std::tuple<Rank, int, int>, int> packet_rounds_;              // owner, chunk, slot: last round put, from 1
  std::map<std::tuple<Rank, Rank, int, int>, int> signals_;              // from, to, id, slot: last round sent, from 1
  std::map<std::tuple<Rank, int, int>, int> arrivals_;                   // rank, barrier, round
};

/// One run in random order; what went wrong, or nothing.
std::optional<std::string> run_randomly(const Plan& plan, const MachineRequest& request, std::mt19937& random);

/// All runs in all orders; what went wrong in one of them, or nothing. `states` gets how many there are.
std::optional<std::string> run_every_way(const Plan& plan, const MachineRequest& request,
                                         std::size_t* states = nullptr);

/// Whether input and output of a rank may be the same memory at all.
bool is_in_place_possible(Collective collective);

inline Number add(Number a, Number b) { return a + b; }
/// Neither commutative nor associative, and wraps: equal results mean equal trees.
inline Number mix(Number a, Number b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return static_cast<Number>((x * 0x9e3779b97f4a7c15ULL ^ (x >> 31)) + (y * 0xff51afd7ed558ccdULL ^ (y >> 29)));
}

}  // namespace accord::plan::testing
