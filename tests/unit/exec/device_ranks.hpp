#pragma once
// The ranks of a group on devices over host memory, for plans that run without a communicator.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "device/device_memory.hpp"
#include "device/host_runtime.hpp"
#include "exec/device/device_plan.hpp"
#include "plan/collective.hpp"

namespace accord::testing {

using Bytes = std::vector<std::byte>;

/// Rank r has device r and a stream on it.
class DeviceRanks {
 public:
  DeviceRanks(int size, int instances, std::size_t slot_bytes)
      : runtime_(size), layout_(exec::device_layout(size, instances, slot_bytes)) {
    layout_.has_multicast = true;
    ending_ = static_cast<std::uint64_t*>(
        runtime_.allocate_host({DeviceType::kCuda, 0}, 8 * static_cast<std::size_t>(size)).value());
    std::fill_n(ending_, size, 0);
    std::vector<std::byte*> memories;
    for (int rank = 0; rank < size; ++rank) {
      const Device device{DeviceType::kCuda, static_cast<std::int16_t>(rank)};
      memories.push_back(static_cast<std::byte*>(runtime_.allocate(device, layout_.bytes()).value()));
      std::memset(memories.back(), 0, layout_.bytes());
      ranks_.push_back({device, runtime_.create_stream(device, false).value(), memories.back()});
    }
    for (const Rank& rank : ranks_) std::memcpy(rank.memory, memories.data(), memories.size() * sizeof(std::byte*));
    join_multicast();
  }
  ~DeviceRanks() { end_waits(); }

  int size() const { return static_cast<int>(ranks_.size()); }
  const exec::DeviceLayout& layout() const { return layout_; }
  HostRuntime& runtime() { return runtime_; }
  std::byte* memory(int rank) const { return ranks_[static_cast<std::size_t>(rank)].memory; }
  OnDevice on(int rank) { return {runtime_, ranks_[rank].device, ranks_[rank].stream}; }
  void end_waits() {
    for (int rank = 0; rank < size(); ++rank) end_waits(rank);
  }
  void end_waits(int rank) { std::atomic_ref(ending_[rank]).store(1); }

  /// Tells all ranks where the memory of `rank` in window `number` is.
  void set_window(int number, int rank, const void* memory) {
    for (const Rank& one : ranks_) std::memcpy(one.memory + layout_.window(number, rank), &memory, sizeof(memory));
  }

  Result<exec::DevicePlan> lower(const plan::Plan& plan, int rank, const exec::RequestRecord& request) const {
    return exec::lower_for_device(plan, rank, layout_, request,
                                  {request.dtype, plan::bounds_of(plan, request.count, size_of(request.dtype))});
  }
  Status launch(const plan::Plan& plan, int rank, const exec::RequestRecord& request, const void* input, void* output,
                const exec::PlanEpilogue* epilogue = nullptr) {
    return launch(plan, rank, request, {.input = input, .output = output}, epilogue);
  }
  /// `buffers`: the caller's, with their places if the request is registered.
  Status launch(const plan::Plan& plan, int rank, const exec::RequestRecord& request, exec::DeviceBuffers buffers,
                const exec::PlanEpilogue* epilogue = nullptr) {
    ACCORD_ASSIGN_OR_RETURN(const exec::DevicePlan lowered, lower(plan, rank, request));
    buffers.memory = ranks_[rank].memory;
    buffers.ending = ending_ + rank;
    buffers.windows = ~std::uint64_t{0};
    return exec::launch(runtime_, lowered, layout_, rank, buffers, ranks_[rank].device, ranks_[rank].stream, epilogue);
  }

 private:
  struct Rank {
    Device device;
    Stream stream;
    std::byte* memory;
  };
  void join_multicast() {
    const int ranks = size();
    const std::size_t bytes = runtime_.multicast_bytes(ranks_[0].device, ranks, layout_.multicast_bytes()).value();
    UniqueFd descriptor;
    std::vector<device::Multicast> parts;
    for (const Rank& rank : ranks_)
      parts.push_back(parts.empty() ? runtime_.create_multicast(rank.device, ranks, bytes, descriptor).value()
                                    : runtime_.join_multicast(rank.device, descriptor.get(), bytes).value());
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      ASSERT_TRUE(runtime_.bind_multicast(ranks_[r].device, parts[r]).ok());
      const std::byte* const addresses[] = {parts[r].own, parts[r].all};
      std::memcpy(ranks_[r].memory + exec::DeviceLayout::address_of(ranks), addresses, sizeof(addresses));
    }
  }

  HostRuntime runtime_;
  exec::DeviceLayout layout_;
  std::uint64_t* ending_ = nullptr;
  std::vector<Rank> ranks_;
};

/// Elements of a rank's input and output, as the collective defines them; 0 where it has none.
struct Counts {
  std::size_t input = 0, output = 0;
};
inline Counts counts_of(const exec::RequestRecord& request, int rank, int size) {
  const plan::CollectiveTraits& traits = plan::traits_of(request.collective);
  const auto of = [&](const plan::BufferRole& role) {
    if (!plan::holds(role, rank, request.root)) return std::size_t{0};
    return request.count * (role.divided ? static_cast<std::size_t>(size) : 1);
  };
  return {of(traits.input), of(traits.output)};
}

/// Returns the expected output of a rank after the execution, computed from the inputs of all ranks by the host's
/// kernels. `before`: its earlier contents.
inline Bytes expected_output(const exec::RequestRecord& request, int rank, const std::vector<Bytes>& inputs,
                             Bytes before) {
  const auto size = static_cast<int>(inputs.size());
  const std::size_t part = request.count * size_of(request.dtype);
  const auto put = [&](std::size_t at, const std::byte* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(before.data() + at, from, bytes);
  };
  const auto reduced = [&](std::size_t at) {
    std::vector<const void*> sources;
    for (const Bytes& input : inputs) sources.push_back(input.data() + at);
    Bytes sum(part);
    kernels::reduce_kernel(request.dtype, request.op)(sum.data(), nullptr, sources.data(), nullptr, size,
                                                      request.count);
    return sum;
  };
  if (counts_of(request, rank, size).output == 0) return before;
  const auto root = static_cast<std::size_t>(request.root);
  const auto me = static_cast<std::size_t>(rank);
  switch (request.collective) {
    case Collective::kBroadcast: put(0, inputs[root].data(), part); break;
    case Collective::kAllGather:
    case Collective::kGather:
      for (std::size_t r = 0; r < inputs.size(); ++r) put(r * part, inputs[r].data(), part);
      break;
    case Collective::kScatter: put(0, inputs[root].data() + me * part, part); break;
    case Collective::kAllToAll:
      for (std::size_t r = 0; r < inputs.size(); ++r) put(r * part, inputs[r].data() + me * part, part);
      break;
    case Collective::kReduceScatter: put(0, reduced(me * part).data(), part); break;
    case Collective::kAllReduce:
    case Collective::kReduce: put(0, reduced(0).data(), part); break;
    case Collective::kSendRecv: put(0, inputs[0].data(), part); break;
    case Collective::kBarrier: break;
  }
  return before;
}

}  // namespace accord::testing
