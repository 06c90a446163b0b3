#include "expert/device/kernel_launcher.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>

namespace accord::expert {
namespace {

/// Maximum number of blocks per multiprocessor of kernels whose blocks do not wait.
constexpr int kBlocksPerMultiprocessor = 8;

/// Builds a call's record: the operation, the handle, how often it was prepared, and the remaining fields that must
/// match.
exec::RequestRecord record_of(const DeviceHandle& handle, const Terms& terms) {
  const std::array<std::uint8_t, 4> rest = {
      static_cast<std::uint8_t>(terms.dtype), static_cast<std::uint8_t>(terms.result),
      static_cast<std::uint8_t>(terms.scales), static_cast<std::uint8_t>(terms.weights)};
  return {.root = static_cast<Rank>(terms.operation),
          .count = (std::uint64_t{handle.number} << 32) | handle.prepares,
          .parts = std::bit_cast<std::uint32_t>(rest)};
}

std::array<std::uint8_t, 4> rest_of(const exec::RequestRecord& record) {
  return std::bit_cast<std::array<std::uint8_t, 4>>(static_cast<std::uint32_t>(record.parts));
}

std::string text_of(const exec::RequestRecord& record) {
  const auto operation = static_cast<Operation>(record.root);
  const auto rest = rest_of(record);
  return expert::text_of(CallRecord{.operation = operation,
                                    .dtype = rest[0],
                                    .result_dtype = rest[1],
                                    .scales = static_cast<Given>(rest[2]),
                                    .weights = static_cast<Given>(rest[3]),
                                    .handle = static_cast<std::uint32_t>(record.count >> 32),
                                    .generation = static_cast<std::uint32_t>(record.count)});
}

bool is_alike(const exec::RequestRecord& a, const exec::RequestRecord& b) {
  const auto mine = rest_of(a), theirs = rest_of(b);
  const auto matches = [](std::uint8_t one, std::uint8_t other) {
    constexpr auto kAny = static_cast<std::uint8_t>(Given::kAny);
    return one == other || one == kAny || other == kAny;
  };
  return a.root == b.root && a.count == b.count && mine[0] == theirs[0] && mine[1] == theirs[1] &&
         matches(mine[2], theirs[2]) && matches(mine[3], theirs[3]);
}

}  // namespace

Result<KernelLauncher> KernelLauncher::create(std::shared_ptr<const GroupSetup> setup) {
  const Device device = setup->config.device;
  ACCORD_ASSIGN_OR_RETURN(device::Runtime* const runtime, device::runtime_of(device.type));
  if (device.index < 0 || device.index >= runtime->count())
    return Status(StatusCode::kInvalidArgument, fmt::format("device is {}, but this rank has {} devices of that type",
                                                            to_string(device), runtime->count()));
  KernelLauncher created(std::move(setup), *runtime);
  ACCORD_ASSIGN_OR_RETURN(created.stop_, comm::stop_word(created.communicator(), device));
  ACCORD_ASSIGN_OR_RETURN(const int processors, runtime->multiprocessors(device));
  created.max_blocks_ = kBlocksPerMultiprocessor * processors;
  const int max_ctas = comm::options_of(created.communicator()).hints.max_ctas.value_or(processors);
  created.max_together_ = std::min(processors, max_ctas);
  return created;
}

Result<std::shared_ptr<const device::Event>> KernelLauncher::run(const DeviceHandle& handle, const Terms& terms,
                                                                 Stream stream,
                                                                 const std::function<Status()>& enqueue) const {
  const comm::KernelCall call{
      .device = device(), .stream = stream, .record = record_of(handle, terms), .text = text_of, .alike = is_alike};
  return comm::run(communicator(), call, enqueue);
}

}  // namespace accord::expert
