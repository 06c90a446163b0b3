#pragma once
// A rank's program as its GPU runs it: a value small enough to be a kernel argument, so that nothing has to be kept
// for launches in flight.

#include <array>
#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"
#include "device/kernel.hpp"
#include "exec/device/device_layout.hpp"
#include "exec/place_word.hpp"

namespace accord::exec {

/// An address relative to a base of Operand (exec/operand.hpp).
struct DeviceOperand {
  std::uint64_t offset : 44;
  std::uint64_t base : 16;
  std::uint64_t packets : 1;
  std::uint64_t partial : 1;  ///< holds sums that are wider than elements
};
static_assert(sizeof(DeviceOperand) == 8);

/// Destinations are written with the same data unless stated otherwise.
enum class DeviceOpcode : std::uint8_t {
  kMove,          ///< unchanged bytes, from memory to memory
  kMoveBySwitch,  ///< from memory, or as a sum over every rank's, to memory of every rank or this one's
  kCopyPackets,   ///< unchanged bytes, from packets to memory
  kReduce,        ///< elements in memory to elements in memory
  kReduceMixed,   ///< some operands are packets, or sums that are wider than elements
  kPut,           ///< from memory to packets
  kSignal,        ///< the flags at the destinations
  kSignalPlaces,  ///< the same, with the places of this rank's buffers
  kWait,          ///< for the flags at the sources
  kWaitPlaces,    ///< sources are pairs: a flag, and the input of the peer whose places come with it
  kLaneBarrier,
};

/// Its operands are the sources, then the destinations.
struct DeviceStep {
  std::uint64_t length = 0;  ///< elements of the chunk over all slices
  DeviceOpcode opcode = DeviceOpcode::kMove;
  std::uint16_t first_operand = 0;
  std::uint16_t sources = 0;
  std::uint16_t destinations = 0;
};
static_assert(sizeof(DeviceStep) == 16);

struct DeviceProgram {
  static constexpr std::size_t kMaxBytes = 3584;

  std::uint64_t slice = 1;   ///< elements of each chunk handled by one round
  std::uint64_t slices = 1;  ///< of all instances together
  std::uint16_t element_bytes = 1;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  bool reaches_all = false;  ///< at the end of a round every peer is known to have begun it
  std::uint8_t lanes = 1;
  std::uint16_t steps = 0;  ///< of all lanes
  /// The start of each lane's steps (uint16_t), then the steps, then the operands.
  alignas(8) std::array<std::byte, kMaxBytes> words = {};

  static constexpr std::size_t steps_at(int lanes) { return (2 * static_cast<std::size_t>(lanes + 1) + 7) / 8 * 8; }

  /// The first step of a lane, and so the one behind the last of the lane before it.
  ACCORD_ON_DEVICE int first_step(int lane) const {
    return *reinterpret_cast<const std::uint16_t*>(words.data() + 2 * static_cast<std::size_t>(lane));
  }
  ACCORD_ON_DEVICE const DeviceStep& step(int index) const {
    return reinterpret_cast<const DeviceStep*>(words.data() + steps_at(lanes))[index];
  }
  ACCORD_ON_DEVICE const DeviceOperand& source(const DeviceStep& step, int index) const {
    return operand(step.first_operand + index);
  }
  ACCORD_ON_DEVICE const DeviceOperand& destination(const DeviceStep& step, int index) const {
    return operand(step.first_operand + step.sources + index);
  }

 private:
  ACCORD_ON_DEVICE const DeviceOperand& operand(int index) const {
    const std::byte* const operands = words.data() + steps_at(lanes) + sizeof(DeviceStep) * steps;
    return reinterpret_cast<const DeviceOperand*>(operands)[index];
  }
};

/// Arguments of a launch in addition to its program.
struct DeviceExecution {
  DeviceLayout layout;
  int me = 0;
  int instances = 1;  ///< number of participating instances; blocks of the grid: instances * lanes
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  PlaceWord input_place = kNoPlace;  ///< for plans with buffers in windows
  PlaceWord output_place = kNoPlace;
  std::uint64_t windows = 0;              ///< numbers of those that this rank still has, as bits
  std::byte* memory = nullptr;            ///< this rank's
  const std::uint64_t* ending = nullptr;  ///< in host memory: nonzero once waits must end
  std::uint64_t* fault = nullptr;         ///< in host memory: set if two kernels of this rank run at the same time
};

}  // namespace accord::exec
