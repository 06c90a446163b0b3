#pragma once
// A schedule that runs in virtual time. Lanes run in the order of time: an operation begins when its lane is the next
// event, so whatever others do before it is known. Three things are shared besides links between hosts (messages.hpp):
//
//   processor  one for each stream of each rank, which its lanes use in turn
//   core       of several ranks, if there are fewer cores than ranks: see cores.hpp
//   memory     of a host, as a link over which the bytes of its ranks that are in no cache flow, if the machine limits
//              it

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/call_state.hpp"
#include "sim/cores.hpp"
#include "sim/event_queue.hpp"
#include "sim/flows.hpp"
#include "sim/simulate.hpp"

namespace accord::sim {

/// Runs once. Its arguments must outlive it.
class Simulation {
 public:
  Simulation(const Schedule& schedule, const Machine& machine, const topology::Topology& topology,
             const Network* network, Sharing sharing, Journal* journal);

  Result<Times> run();

 private:
  struct LaneState {
    MemberState* member = nullptr;
    std::span<const Op> ops{};
    std::size_t next = 0;      // operation
    std::uint32_t number = 0;  // in the member
    std::uint32_t task = kNone;
    Moment moment{};
    bool waited = false;  // for the event of the next operation
  };
  struct TaskState {
    std::uint32_t waits_for = 0;  // tasks
    bool has_ended = false;
    Moment begin;
  };
  enum class Stop : std::uint8_t { kEnd, kWait, kLater };  // kLater: the time at which it goes on is known

  RankTimes& times_of(Rank rank) { return times_.ranks[to_size(rank)]; }
  std::uint32_t stream_of(Rank rank, std::uint32_t stream) const {
    return static_cast<std::uint32_t>(rank * schedule_.streams) + stream;
  }
  Moment& processor_of(const MemberState& member) { return processors_[member.stream]; }

  // Tasks and calls (simulation.cpp)
  void begin_tasks();
  void begin_task(std::uint32_t id);
  void release(std::span<const std::uint32_t> tasks, const Moment& moment);
  void end_task(std::uint32_t id, Moment end);
  void start_lane(std::uint32_t id);
  void end_lane(std::uint32_t id);
  CallState& call_state(std::uint32_t id);
  void begin_round(MemberState& member, Moment begin);
  double seconds_of_gate(const MemberState& member) const;
  void end_round(MemberState& member);
  void end_member(MemberState& member);
  Status check_ended() const;

  // Operations (simulation_ops.cpp)
  void run_lane(std::uint32_t id);
  Stop run_ops(std::uint32_t id);
  void release_core(Rank rank);
  void grant_cores();
  std::uint32_t enter(const LaneState& lane, const Op& op, double bytes);
  void end_op(LaneState& lane, const Moment& end);
  void start_work(std::uint32_t id, double bytes, double seconds, std::uint32_t entry);
  void end_work(FlowId flow);
  bool pass_barrier(std::uint32_t id, std::uint32_t barrier);
  bool wait(std::uint32_t id, const Op& op);
  void hear(LaneState& lane, const Moment& moment);
  void arrive(CallState& call, std::uint32_t event, std::uint64_t round, const Moment& moment);
  void send(const LaneState& lane, const Op& op, double bytes);
  void take_deliveries();

  const Schedule& schedule_;
  const HostModel& host_;
  const topology::Topology& topology_;
  int hosts_;  // of the ranks
  bool has_memory_links_;
  double now_ = 0;
  Flows memory_;
  Messages messages_;
  Journal* journal_;
  EventQueue<std::uint32_t> ready_;  // lanes
  Pool<LaneState> lanes_;
  std::vector<Moment> processors_;  // when they are free
  Cores cores_;
  Programs direct_programs_;  // of operations that belong to no call
  CallState direct_;
  std::vector<std::unique_ptr<CallState>> calls_;  // under way
  std::vector<TaskState> tasks_;
  std::vector<std::uint32_t> to_begin_;                                   // tasks
  std::vector<std::uint32_t> working_;                                    // lanes, by flow over the memory
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> parked_;  // lanes that wait for such work, by stream
  Times times_;
};

}  // namespace accord::sim
