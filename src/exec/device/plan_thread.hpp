#pragma once
// The work of one thread in a plan: all threads of a block step through their lane together.
//
// A round: wait until all have completed the round plan::kRoundDepth rounds earlier, run the steps, notify the peers
// (device_layout.hpp). Flags and packets carry the round's number. A waiting thread periodically reads a word of host
// memory that ends all waits when the group has failed. A thread that has seen it writes no more, and once a block has
// seen it, the block signals no data as ready: peers never use data that were not produced. Kernels behind it in the
// stream find a word in the device's memory and do nothing: the rounds that they would count from have not completed.
//
// Rounds are counted in the device's memory, so a launch in a graph is correct however often it is replayed.

#include "exec/device/mixed_sums.hpp"
#include "exec/device/moves.hpp"
#include "exec/device/packet_moves.hpp"
#include "exec/device/plan_round.hpp"
#include "exec/device/word_sums.hpp"

namespace accord::exec {

/// One thread of a kernel that runs a plan. Has a function for each kind of step, all of which are inlined.
template <typename Element, typename Block>
class PlanThread {
 public:
  ACCORD_ON_DEVICE PlanThread(Block& block, const DeviceExecution& run, const DeviceProgram& program)
      : round_(block, run, program), program_(program), instances_(static_cast<std::uint64_t>(run.instances)) {}

  /// Returns false if its waits have been ended.
  ACCORD_ON_DEVICE bool run() {
    round_.open();
    for (std::uint64_t slice = round_.instance(); slice < program_.slices; slice += instances_) {
      round_.begin(slice);
      run_lane();
      round_.end();
    }
    round_.close();
    return !round_.ends();
  }

 private:
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;
  using Round = PlanRound<Block>;

  ACCORD_ON_DEVICE void run_lane() {
    const int end = program_.first_step(round_.lane() + 1);
    for (int i = program_.first_step(round_.lane()); i < end;) {
      const DeviceOpcode opcode = program_.step(i).opcode;
      int next = i + 1;
      if (opcode == DeviceOpcode::kPut || opcode == DeviceOpcode::kCopyPackets)
        while (next < end && program_.step(next).opcode == opcode) ++next;
      run_steps(i, next);
      i = next;
    }
  }

  /// Several steps if they move packets, of the same kind; otherwise one.
  ACCORD_ON_DEVICE void run_steps(int first, int end) {
    const DeviceStep& now = program_.step(first);
    switch (now.opcode) {
      case DeviceOpcode::kMove: move(now); break;
      case DeviceOpcode::kMoveBySwitch: move_by_switch(now); break;
      case DeviceOpcode::kCopyPackets: copy_packets(round_, first, end); break;
      case DeviceOpcode::kReduce:
      case DeviceOpcode::kReduceMixed: reduce(now); break;
      case DeviceOpcode::kPut: put_packets(round_, first, end); break;
      case DeviceOpcode::kWait:
      case DeviceOpcode::kWaitPlaces: round_.wait(now); break;
      case DeviceOpcode::kSignal:
      case DeviceOpcode::kSignalPlaces: round_.signal(now); return;
      case DeviceOpcode::kLaneBarrier: round_.sync_lanes(); return;
    }
    round_.sync();
  }

  ACCORD_ON_DEVICE void move(const DeviceStep& now) const {
    if (round_.ends()) return;
    const DeviceOperand& from = program_.source(now, 0);
    const std::size_t bytes = round_.elements(now) * (from.partial ? sizeof(Sum) : sizeof(Stored));
    const std::byte* const at = round_.address(from);
    move_bytes(round_.block(), at, bytes, [&](auto visit) {
      round_.each_destination(now, [&](std::byte* to, const DeviceOperand&) {
        if (to != at) visit(to);  // a call in place: peers may be reading it
      });
    });
  }

  /// Only this step accesses multicast by the address of all ranks, so of any two accesses by different addresses,
  /// one is fenced here.
  ACCORD_ON_DEVICE void move_by_switch(const DeviceStep& now) const {
    if (round_.ends()) return;
    const auto place = [&](std::byte* at, const DeviceOperand& operand) {
      return SwitchPlace{at, round_.is_of_every_rank(operand)};
    };
    const DeviceOperand& from = program_.source(now, 0);
    round_.block().fence_multicast();
    exec::move_by_switch<kSwitchSum<Element>>(
        round_.block(), place(round_.address(from), from), round_.elements(now) * sizeof(Stored), [&](auto visit) {
          round_.each_destination(now, [&](std::byte* to, const DeviceOperand& operand) { visit(place(to, operand)); });
        });
    round_.block().fence_multicast();
  }

  ACCORD_ON_DEVICE void reduce(const DeviceStep& now) {
    if (round_.ends()) return;
    const bool has_words = now.opcode == DeviceOpcode::kReduce;
    MixedSums<Element, Round>(round_, now).run(has_words ? WordSums<Element, Round>(round_, now).run() : 0);
  }

  Round round_;
  const DeviceProgram& program_;
  const std::uint64_t instances_;
};

}  // namespace accord::exec
