#include "comm/device/owned_calls.hpp"

#include <variant>

#include "comm/call.hpp"

namespace accord::comm {

OwnedCalls::OwnedCalls(std::span<const Call> calls, const CallOptions& options)
    : calls_(calls.begin(), calls.end()), options_(options) {
  const auto keep = [this](std::span<const std::size_t>& counts) {
    counts = counts_.emplace_back(counts.begin(), counts.end());
  };
  for (Call& call : calls_) {
    keep(call.input_counts);
    keep(call.output_counts);
    const auto* const factor = std::get_if<ConstBuffer>(&call.op.factor());
    if (factor != nullptr && factor->device.type == DeviceType::kCpu) call.op = Reduction::premul_sum(factor_of(call));
  }
}

}  // namespace accord::comm
