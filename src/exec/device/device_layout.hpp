#pragma once
// The layout of a rank's memory on its GPU (comm/device/peer_memory.hpp), which also determines what a plan's program
// looks like there: pure numbers.
//
// A message is cut into slices, as on the host (exec/lowered.hpp), and the slices are distributed over instances.
// Each instance is the plan's program on its own thread blocks, with its own rounds, flags, packets and scratch, so
// that instances never wait for each other. Instance i handles slices i, i + instances, ... as its rounds.
//
//   head      the addresses of all ranks' memory, as this rank's kernels see them, then those of its own multicast
//             memory and of every rank's; those of all ranks' memory in each window; how often this rank's blocks
//             have met, whether waits of a kernel have been ended, and the progress of each block in the meetings
//   regions   one for each instance:
//     state      this rank's: rounds so far, rounds that all are known to have completed, meetings of lanes so far,
//                blocks that run; the progress of each lane in those meetings
//     completed  by each peer: the last round that it has completed
//     lines      for each of plan::kRoundDepth rounds: signal flags [from][id]; by each peer, two packets with the
//                places of its input and output; packets [chunk]
//     slots      for each of these: scratch

#include <cstddef>
#include <cstdint>

#include "plan/plan.hpp"
#include "plan/step_rules.hpp"

namespace accord::exec {

struct DeviceLayout {
  int members = 1;
  int instances = 1;
  std::size_t slot_bytes = 0;    ///< scratch of one round of an instance, a multiple of 256
  std::size_t packet_bytes = 0;  ///< data bytes per packet chunk, a multiple of 128
  bool has_multicast = false;    ///< multicast memory has slots too

  static constexpr std::size_t kLine = 128;
  static constexpr std::size_t kPacketData = 8;
  static constexpr std::size_t kPacketBytes = 16;
  static constexpr int kMaxWindows = 64;

  constexpr int signals() const { return plan::signals_of_pair(members); }
  constexpr int packet_chunks() const { return 2 * members; }

  // Within a region:
  static constexpr std::size_t kRounds = 0, kAllCompleted = 8, kBarriers = 16, kRunning = 24;
  static constexpr std::size_t lane_barrier(int lane) { return kLine + 8 * static_cast<std::size_t>(lane); }
  static constexpr std::size_t completed(int by) {
    return kLine + 8 * static_cast<std::size_t>(plan::kMaxLanes) + 8 * static_cast<std::size_t>(by);
  }
  constexpr std::size_t lines(std::uint64_t round) const {
    return up(completed(members)) + round % plan::kRoundDepth * lines_bytes();
  }
  constexpr std::size_t slot(std::uint64_t round) const {
    return up(completed(members)) + plan::kRoundDepth * lines_bytes() + round % plan::kRoundDepth * slot_bytes;
  }
  // Within the lines of a round:
  constexpr std::size_t flag(int from, int id) const {
    return 8 * (static_cast<std::size_t>(from) * static_cast<std::size_t>(signals()) + static_cast<std::size_t>(id));
  }
  constexpr std::size_t places(int from) const {
    return up(flag(members, 0)) + 2 * kPacketBytes * static_cast<std::size_t>(from);
  }
  constexpr std::size_t packets(int chunk) const {
    return up(places(members)) + static_cast<std::size_t>(chunk) * (packet_bytes / kPacketData * kPacketBytes);
  }

  // Within the memory:
  static constexpr std::size_t address_of(int member) { return 8 * static_cast<std::size_t>(member); }
  /// The address of a member's memory in a window.
  constexpr std::size_t window(int number, int member) const {
    return up(address_of(members + 2)) + 8 * static_cast<std::size_t>(number * members + member);
  }
  constexpr std::size_t block_barriers() const { return up(window(kMaxWindows, 0)); }
  constexpr std::size_t failed() const { return block_barriers() + 8; }
  constexpr std::size_t block_barrier(int block) const {
    return block_barriers() + kLine + 8 * static_cast<std::size_t>(block);
  }
  constexpr std::size_t region(int instance) const {
    return up(block_barrier(instances * plan::kMaxLanes)) +
           static_cast<std::size_t>(instance) * (slot(0) + plan::kRoundDepth * slot_bytes);
  }
  constexpr std::size_t bytes() const { return region(instances); }

  // Within the multicast memory, which contains only slots:
  constexpr std::size_t multicast_slot(int instance, std::uint64_t round) const {
    return (static_cast<std::size_t>(instance) * plan::kRoundDepth + round % plan::kRoundDepth) * slot_bytes;
  }
  constexpr std::size_t multicast_bytes() const { return multicast_slot(instances, 0); }

 private:
  static constexpr std::size_t up(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  constexpr std::size_t lines_bytes() const { return up(packets(packet_chunks())); }
};

}  // namespace accord::exec
