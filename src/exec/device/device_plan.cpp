// Lowering is the host's (exec/lower.cpp), over the places of a DeviceLayout; its result is written as a
// DeviceProgram. A reduction of one source that needs no other representation is a move.
#include "exec/device/device_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/rounding.hpp"
#include "exec/device/run_plan.hpp"

namespace accord::exec {
namespace {

constexpr std::size_t kPacketBytesOfChunk = 4096;
constexpr std::size_t kMinSlot = std::size_t{64} << 10;
/// Minimum bytes of each chunk per instance, so that short messages are not spread too thin.
constexpr std::size_t kMinSlice = 1024;

SharedPlaces places_of(const DeviceLayout& layout, std::size_t element_bytes, std::size_t max_slice) {
  return {.members = layout.members,
          .signals = layout.signals(),
          .packet_chunks = layout.packet_chunks(),
          .slot_bytes = layout.slot_bytes,
          .multicast_bytes = layout.has_multicast ? layout.slot_bytes : 0,
          .line = DeviceLayout::kLine,
          .flag_stride = layout.flag(0, 1) - layout.flag(0, 0),
          .packets = layout.packets(0),
          .packets_stride = layout.packets(1) - layout.packets(0),
          .packet_capacity = layout.packet_bytes,
          .packet_data = std::max(DeviceLayout::kPacketData, element_bytes),
          .cells = false,
          .max_slice = max_slice};
}

/// Writes steps and operands one after the other, as far as there is room.
class Writer {
 public:
  Writer(DeviceProgram& program, int members) : program_(program), members_(members) {}

  Status write(const LoweredPlan& plan) {
    program_.lanes = static_cast<std::uint8_t>(plan.lanes.size());
    std::size_t steps = 0;
    for (const auto& lane : plan.lanes) steps += lane.size();
    const std::size_t first = DeviceProgram::steps_at(program_.lanes);
    const std::size_t operands = first + steps * sizeof(DeviceStep);
    if (operands + plan.operands.size() * sizeof(DeviceOperand) > DeviceProgram::kMaxBytes)
      return Status(StatusCode::kUnsupported, fmt::format("{} steps are more than a kernel accepts", steps));
    program_.steps = static_cast<std::uint16_t>(steps);
    std::uint16_t number = 0;
    for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      put(2 * lane, number);
      for (const LoweredStep& step : plan.lanes[lane]) {
        ACCORD_ASSIGN_OR_RETURN(const DeviceStep written, step_of(step, plan));
        put(first + number++ * sizeof(DeviceStep), written);
      }
    }
    put(2 * plan.lanes.size(), number);
    for (std::size_t i = 0; i < plan.operands.size(); ++i)
      put(operands + i * sizeof(DeviceOperand), operand_of(plan.operands[i]));
    return {};
  }

 private:
  template <typename T>
  void put(std::size_t at, const T& value) {
    std::memcpy(program_.words.data() + at, &value, sizeof(value));
  }

  static DeviceOperand operand_of(const Operand& operand) {
    DeviceOperand written = {};
    written.offset = operand.offset & ((std::uint64_t{1} << 44) - 1);
    written.base = operand.base;
    written.packets = operand.packets;
    written.partial = operand.partial;
    return written;
  }

  Result<DeviceStep> step_of(const LoweredStep& step, const LoweredPlan& plan) const {
    DeviceStep written{.sources = step.sources,
                       .first_source = step.first_source,
                       .length = step.length,
                       .destination = operand_of(step.destination),
                       .mirror = operand_of(step.mirror)};
    written.destinations = step.has_mirror ? 2 : 1;
    if (goes_through_switch(step, plan)) {
      written.opcode = DeviceOpcode::kMoveBySwitch;
      return written;
    }
    switch (step.opcode) {
      case Opcode::kCopy: written.opcode = DeviceOpcode::kMove; break;
      case Opcode::kCopyPackets: written.opcode = DeviceOpcode::kCopyPackets; break;
      case Opcode::kPutPackets: written.opcode = DeviceOpcode::kPut; break;
      case Opcode::kSignal: written.opcode = DeviceOpcode::kSignal; break;
      case Opcode::kWait: written.opcode = DeviceOpcode::kWait; break;
      case Opcode::kLaneBarrier: written.opcode = DeviceOpcode::kLaneBarrier; break;
      case Opcode::kReduce:
      case Opcode::kReducePackets:
      case Opcode::kReducePartials:
        written.opcode = is_move(step, plan) ? DeviceOpcode::kMove : DeviceOpcode::kReduce;
        break;
      default: return Status(StatusCode::kUnsupported, "devices have no such step");
    }
    return written;
  }

  bool goes_through_switch(const LoweredStep& step, const LoweredPlan& plan) const {
    const std::uint16_t every = Operand::multicast_of(true, members_);
    return (step.sources > 0 && plan.operands[step.first_source].base == every) || step.destination.base == every ||
           (step.has_mirror && step.mirror.base == every);
  }

  static bool is_move(const LoweredStep& step, const LoweredPlan& plan) {
    if (step.sources != 1) return false;
    const Operand& source = plan.operands[step.first_source];
    return !source.packets && source.partial == step.destination.partial &&
           (!step.has_mirror || source.partial == step.mirror.partial);
  }

  DeviceProgram& program_;
  const int members_;
};

template <DType kDType>
Status launch_plan(const PlanLaunch& one) {
  return device::launch(one.runtime, RunPlan<kDType>{one.run, one.program}, one.grid, one.device, one.stream);
}

template <std::size_t... kDTypes>
constexpr std::array<Status (*)(const PlanLaunch&), sizeof...(kDTypes)> launches(std::index_sequence<kDTypes...>) {
  return {launch_plan<static_cast<DType>(kDTypes)>...};
}

}  // namespace

DeviceLayout device_layout(int members, int instances, std::size_t slot_bytes) {
  const std::size_t each = std::max(slot_bytes / static_cast<std::size_t>(instances), kMinSlot);
  return {.members = members,
          .instances = instances,
          .slot_bytes = round_up(each, std::size_t{256}),
          .packet_bytes = kPacketBytesOfChunk};
}

Result<DevicePlan> lower_for_device(const plan::Plan& plan, int me, const DeviceLayout& layout,
                                    const RequestRecord& request, Payload payload) {
  const auto unsupported = [&](std::string_view why) {
    return Status(StatusCode::kUnsupported, fmt::format("plan \"{}\" on a device: {}", plan.name, why));
  };
  if (plan.buffers != plan::Buffers::kAnywhere)
    return unsupported("it needs buffers in windows, which devices do not support");
  if (plan.order != plan::Order::kNone && request.op == ReduceOp::kPremulSum)
    return unsupported("devices do not support factors");
  if (plan.order == plan::Order::kSwitch &&
      (request.op != ReduceOp::kSum || switch_sum_of(payload.dtype) == device::SwitchSum::kNone))
    return unsupported(
        fmt::format("a switch does not support {} of {}", to_string(request.op), to_string(payload.dtype)));
  const std::size_t element_bytes = size_of(payload.dtype);
  const std::size_t bytes = payload.bounds.longest * element_bytes;
  const std::size_t each =
      (bytes + static_cast<std::size_t>(layout.instances) - 1) / static_cast<std::size_t>(layout.instances);
  const std::size_t max_slice = round_up(std::max(each, kMinSlice), DeviceLayout::kLine);
  const DType dtype = payload.dtype;
  ACCORD_ASSIGN_OR_RETURN(const LoweredPlan lowered, lower(plan, me, places_of(layout, element_bytes, max_slice),
                                                           layout.slot_bytes, request, std::move(payload)));
  DevicePlan made;
  made.program.slice = lowered.slice;
  made.program.slices = lowered.rounds;
  made.program.element_bytes = static_cast<std::uint16_t>(element_bytes);
  made.program.dtype = dtype;
  made.program.op = request.op;
  made.program.reaches_all = lowered.reaches_all;
  made.instances =
      static_cast<int>(std::min<std::uint64_t>(lowered.rounds, static_cast<std::uint64_t>(layout.instances)));
  if (const Status written = Writer(made.program, layout.members).write(lowered); !written.ok())
    return unsupported(written.message());
  return made;
}

Status launch(device::Runtime& runtime, const DevicePlan& plan, const DeviceLayout& layout, int me,
              const DeviceBuffers& buffers, Device device, Stream stream, const PlanEpilogue* epilogue) {
  static constexpr std::array kLaunches = launches(std::make_index_sequence<kDTypeCount>());
  const DeviceExecution run{.layout = layout,
                            .me = me,
                            .instances = plan.instances,
                            .input = static_cast<const std::byte*>(buffers.input),
                            .output = static_cast<std::byte*>(buffers.output),
                            .memory = buffers.memory,
                            .ending = buffers.ending,
                            .fault = buffers.fault};
  const device::Grid grid{.blocks = plan.instances * plan.program.lanes, .threads = 512, .together = true};
  PlanLaunch one{runtime, run, plan.program, grid, device, stream};
  if (epilogue != nullptr && epilogue->blocks() <= std::max(grid.blocks, layout.instances)) {
    one.grid.blocks = std::max(grid.blocks, static_cast<int>(epilogue->blocks()));
    return epilogue->launch_with(one);
  }
  ACCORD_RETURN_IF_ERROR(kLaunches[static_cast<std::size_t>(plan.program.dtype)](one));
  return epilogue == nullptr ? Status() : epilogue->launch(runtime, device, stream);
}

}  // namespace accord::exec
