// Lowering is the host's (exec/lower.cpp), over the places of a DeviceLayout; its result is written as a
// DeviceProgram. A reduction of one source that needs no other representation is a move.
#include "exec/device/device_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "base/rounding.hpp"
#include "exec/device/run_plan.hpp"
#include "plan/verifier.hpp"

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

/// Translates the steps of each lane. Consecutive steps that a kernel does better at once become one: signals, waits,
/// and copies of one source, also of a sum that was just computed.
class Writer {
 public:
  Writer(DeviceProgram& program, int members) : program_(program), members_(members) {}

  Status write(const LoweredPlan& plan) {
    for (const auto& lane : plan.lanes) {
      lane_starts_.push_back(static_cast<std::uint16_t>(steps_.size()));
      signalled_.assign(static_cast<std::size_t>(members_), false);
      heard_ = signalled_;
      for (const LoweredStep& step : lane) {
        ACCORD_ASSIGN_OR_RETURN(const Translated next, translate(step, plan));
        if (!join(next)) add(next);
      }
    }
    lane_starts_.push_back(static_cast<std::uint16_t>(steps_.size()));
    program_.lanes = static_cast<std::uint8_t>(plan.lanes.size());
    program_.steps = static_cast<std::uint16_t>(steps_.size());
    const std::size_t first = DeviceProgram::steps_at(program_.lanes);
    const std::size_t operands = first + steps_.size() * sizeof(DeviceStep);
    if (const std::size_t bytes = operands + operands_.size() * sizeof(DeviceOperand); bytes > DeviceProgram::kMaxBytes)
      return Status(StatusCode::kUnsupported, fmt::format("its {} steps need {} bytes, and a kernel accepts {}",
                                                          steps_.size(), bytes, DeviceProgram::kMaxBytes));
    put(0, lane_starts_);
    put(first, steps_);
    put(operands, operands_);
    return {};
  }

 private:
  struct Translated {
    DeviceOpcode opcode = DeviceOpcode::kMove;
    std::uint64_t length = 0;
    std::vector<DeviceOperand> sources, destinations;
  };

  template <typename T>
  void put(std::size_t at, const std::vector<T>& values) {
    if (!values.empty()) std::memcpy(program_.words.data() + at, values.data(), values.size() * sizeof(T));
  }

  void add(const Translated& next) {
    steps_.push_back({.length = next.length,
                      .opcode = next.opcode,
                      .first_operand = static_cast<std::uint16_t>(operands_.size()),
                      .sources = static_cast<std::uint16_t>(next.sources.size()),
                      .destinations = static_cast<std::uint16_t>(next.destinations.size())});
    operands_.insert(operands_.end(), next.sources.begin(), next.sources.end());
    operands_.insert(operands_.end(), next.destinations.begin(), next.destinations.end());
  }

  /// Makes `next` a part of the last step of the lane, if it can be. The chunks of a step are either the same memory
  /// or different memory, also in place, and a thread reads its elements of all sources before it writes them. So a
  /// copy of a sum may be written together with the sum.
  bool join(const Translated& next) {
    if (steps_.size() == lane_starts_.back()) return false;
    DeviceStep& last = steps_.back();
    const bool waits = next.opcode == DeviceOpcode::kWait || next.opcode == DeviceOpcode::kWaitPlaces;
    const bool signals = next.opcode == DeviceOpcode::kSignal || next.opcode == DeviceOpcode::kSignalPlaces;
    const bool copies = next.opcode == DeviceOpcode::kMove || next.opcode == DeviceOpcode::kPut;
    const bool is_same = last.opcode == next.opcode, is_of_sum = copies && is_reduction(last.opcode);
    if (!(waits || signals || copies) || !(is_same || is_of_sum)) return false;
    if (copies) {
      const DeviceOperand& written = operands_[last.first_operand + (is_of_sum ? last.sources : 0U)];
      if (last.length != next.length || !are_equal(written, next.sources[0])) return false;
      if (next.opcode == DeviceOpcode::kPut && is_of_sum) last.opcode = DeviceOpcode::kReduceMixed;
    }
    const std::vector<DeviceOperand>& more = waits ? next.sources : next.destinations;
    operands_.insert(operands_.end(), more.begin(), more.end());
    std::uint16_t& number = waits ? last.sources : last.destinations;
    number = static_cast<std::uint16_t>(number + more.size());
    return true;
  }

  static bool is_reduction(DeviceOpcode opcode) {
    return opcode == DeviceOpcode::kReduce || opcode == DeviceOpcode::kReduceMixed;
  }
  static bool are_equal(const DeviceOperand& a, const DeviceOperand& b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  }

  static DeviceOperand operand_of(const Operand& operand) {
    DeviceOperand written = {};
    written.offset = operand.offset & ((std::uint64_t{1} << 44) - 1);
    written.base = operand.base;
    written.packets = operand.packets;
    written.partial = operand.partial;
    return written;
  }

  Result<Translated> translate(const LoweredStep& step, const LoweredPlan& plan) {
    Translated next{.length = step.length, .sources = {}, .destinations = {}};
    const bool signals = step.opcode == Opcode::kSignal || step.opcode == Opcode::kSignalPlaces;
    const bool waits = step.opcode == Opcode::kWait || step.opcode == Opcode::kWaitPlaces;
    for (int i = 0; i < step.sources; ++i)
      next.sources.push_back(operand_of(plan.operands[step.first_source + static_cast<std::size_t>(i)]));
    if (waits) next.sources.push_back(operand_of(step.destination));
    if (!waits && step.opcode != Opcode::kLaneBarrier) next.destinations.push_back(operand_of(step.destination));
    if (step.has_mirror) next.destinations.push_back(operand_of(step.mirror));
    if (signals || waits) {
      next.length = 0;
      // Places are the same in all signals of a round. A lane receives them with the first signal of each peer.
      std::vector<bool>& known = signals ? signalled_ : heard_;
      const bool has_places = plan.in_windows && !known[static_cast<std::size_t>(step.peer)];
      known[static_cast<std::size_t>(step.peer)] = true;
      next.opcode = signals      ? has_places ? DeviceOpcode::kSignalPlaces : DeviceOpcode::kSignal
                    : has_places ? DeviceOpcode::kWaitPlaces
                                 : DeviceOpcode::kWait;
      if (waits && has_places) next.sources.push_back(operand_of({.base = Operand::input_of(step.peer, members_)}));
      return next;
    }
    ACCORD_ASSIGN_OR_RETURN(next.opcode, opcode_of(step, next));
    return next;
  }

  Result<DeviceOpcode> opcode_of(const LoweredStep& step, const Translated& next) const {
    const auto is_of_every_rank = [this](const DeviceOperand& operand) {
      return operand.base == Operand::multicast_of(true, members_);
    };
    const auto is_mixed = [](const DeviceOperand& operand) { return operand.packets != 0 || operand.partial != 0; };
    if (std::ranges::any_of(next.sources, is_of_every_rank) || std::ranges::any_of(next.destinations, is_of_every_rank))
      return DeviceOpcode::kMoveBySwitch;
    switch (step.opcode) {
      case Opcode::kCopy: return DeviceOpcode::kMove;
      case Opcode::kCopyPackets: return DeviceOpcode::kCopyPackets;
      case Opcode::kPutPackets: return DeviceOpcode::kPut;
      case Opcode::kLaneBarrier: return DeviceOpcode::kLaneBarrier;
      case Opcode::kReduce:
      case Opcode::kReducePackets:
      case Opcode::kReducePartials:
        if (is_move(next)) return DeviceOpcode::kMove;
        return std::ranges::any_of(next.sources, is_mixed) || std::ranges::any_of(next.destinations, is_mixed)
                   ? DeviceOpcode::kReduceMixed
                   : DeviceOpcode::kReduce;
      default: return Status(StatusCode::kUnsupported, "devices have no such step");
    }
  }

  static bool is_move(const Translated& next) {
    if (next.sources.size() != 1 || next.sources[0].packets != 0) return false;
    return std::ranges::all_of(next.destinations, [&](const DeviceOperand& destination) {
      return destination.partial == next.sources[0].partial;
    });
  }

  DeviceProgram& program_;
  const int members_;
  std::vector<std::uint16_t> lane_starts_;
  std::vector<DeviceStep> steps_;
  std::vector<DeviceOperand> operands_;
  // Peers that the lane has signalled, and waited for:
  std::vector<bool> signalled_, heard_;
};

/// Returns the lanes of the rank that has the most, so that all ranks get the same instances.
int most_lanes(const plan::Plan& plan) {
  std::size_t most = 1;
  for (const plan::Program& program : plan.programs) most = std::max(most, program.lanes.size());
  return static_cast<int>(most);
}

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

Status check_for_device(const plan::Plan& plan) {
  const Status ordered = plan::verify_without_packets(plan);
  if (ordered.ok()) return {};
  return Status(StatusCode::kUnsupported,
                fmt::format("packets on devices order no other memory: {}", ordered.message()));
}

Result<DevicePlan> lower_for_device(const plan::Plan& plan, int me, const DeviceLayout& layout,
                                    const RequestRecord& request, Payload payload) {
  const auto unsupported = [&](std::string_view why) {
    return Status(StatusCode::kUnsupported, fmt::format("plan \"{}\" on a device: {}", plan.name, why));
  };
  if (plan.buffers != plan::Buffers::kAnywhere && request.phase != Phase::kRegistered)
    return unsupported("it needs the buffers of all ranks to be in windows");
  if (plan.order != plan::Order::kNone && request.op == ReduceOp::kPremulSum)
    return unsupported("devices do not support factors");
  if (plan.order == plan::Order::kSwitch &&
      (request.op != ReduceOp::kSum || switch_sum_of(payload.dtype) == device::SwitchSum::kNone))
    return unsupported(
        fmt::format("a switch does not support {} of {}", to_string(request.op), to_string(payload.dtype)));
  const std::size_t element_bytes = size_of(payload.dtype);
  const std::size_t bytes = payload.bounds.longest * element_bytes;
  const auto chunks = static_cast<std::size_t>(std::max(plan.input_chunks, plan.output_chunks));
  // Thread blocks: each instance has one for each lane.
  const int most = chunks * bytes > kLargeBytes ? layout.instances : std::min(layout.instances, kUsualInstances);
  const int instances = std::max(1, most / most_lanes(plan));
  const std::size_t each = (bytes + static_cast<std::size_t>(instances) - 1) / static_cast<std::size_t>(instances);
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
  made.program.reaches_all = lowered.reaches_all && !plan::mixes_packets(plan);
  made.instances = static_cast<int>(std::min<std::uint64_t>(lowered.rounds, static_cast<std::uint64_t>(instances)));
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
                            .input_place = buffers.input_place,
                            .output_place = buffers.output_place,
                            .windows = buffers.windows,
                            .memory = buffers.memory,
                            .ending = buffers.ending,
                            .fault = buffers.fault};
  const device::Grid grid{.blocks = plan.instances * plan.program.lanes,
                          .threads = 512,
                          .shared_bytes = shared_bytes_of(layout),
                          .together = true};
  PlanLaunch one{runtime, run, plan.program, grid, device, stream};
  if (epilogue != nullptr && epilogue->blocks() <= std::max(grid.blocks, std::min(layout.instances, kUsualInstances))) {
    one.grid.blocks = std::max(grid.blocks, static_cast<int>(epilogue->blocks()));
    return epilogue->launch_with(one);
  }
  ACCORD_RETURN_IF_ERROR(kLaunches[static_cast<std::size_t>(plan.program.dtype)](one));
  return epilogue == nullptr ? Status() : epilogue->launch(runtime, device, stream);
}

}  // namespace accord::exec
