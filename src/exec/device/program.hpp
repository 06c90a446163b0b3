#pragma once
// A rank's program as its GPU runs it: a value small enough to be a kernel argument, so that nothing has to be kept
// for launches in flight.

#include <array>
#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"
#include "exec/device/device_layout.hpp"

namespace accord::exec {

/// An address relative to a base of Operand (exec/operand.hpp).
struct DeviceOperand {
  std::uint64_t offset : 44;
  std::uint64_t base : 16;
  std::uint64_t packets : 1;
  std::uint64_t partial : 1;  ///< holds sums that are wider than elements
};

enum class DeviceOpcode : std::uint8_t {
  kMove,          ///< unchanged bytes, from memory
  kMoveBySwitch,  ///< from memory, or as a sum over every rank's, to memory of every rank or this one's
  kCopyPackets,   ///< unchanged bytes, from packets
  kReduce,
  kPut,     ///< to packets
  kSignal,  ///< the flag at `destination`
  kWait,
  kLaneBarrier,
};

struct DeviceStep {
  DeviceOpcode opcode = DeviceOpcode::kMove;
  std::uint8_t destinations = 0;
  std::uint16_t sources = 0;       ///< number of operands from first_source
  std::uint32_t first_source = 0;  ///< into the operands
  std::uint64_t length = 0;        ///< elements of the chunk over all slices
  DeviceOperand destination = {};
  DeviceOperand mirror = {};
};
static_assert(sizeof(DeviceStep) == 32);

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
};

/// Arguments of a launch in addition to its program.
struct DeviceExecution {
  DeviceLayout layout;
  int me = 0;
  int instances = 1;  ///< number of participating instances; blocks of the grid: instances * lanes
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* memory = nullptr;            ///< this rank's
  const std::uint64_t* ending = nullptr;  ///< in host memory: nonzero once waits must end
  std::uint64_t* fault = nullptr;         ///< in host memory: set if two kernels of this rank run at the same time
};

}  // namespace accord::exec
