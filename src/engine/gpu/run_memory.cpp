// A run puts its inputs, its kernels and the copy of its fault into one stream and waits for that stream. The kernels
// of a program know only addresses that stay the same from run to run: inputs are copied to their place in the arena,
// and the tables of a batch to theirs. A program is therefore launched as one graph from its second run on. A program
// that cannot be captured runs step by step.
#include "engine/gpu/run_memory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/rounding.hpp"
#include "engine/graph/node_access.hpp"

namespace accord::engine::gpu {
namespace {

constexpr std::size_t kStagedAlignment = 64;

Status status_of(const Fault& fault) {
  if (fault.count == 0) return Status();
  const auto* const node = reinterpret_cast<const Node*>(static_cast<std::uintptr_t>(fault.node));
  const std::string place = node == nullptr ? "a kernel" : node_text(*node);
  if (fault.kind == Fault::kDivision) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: a whole number is divided by zero at position {}", place, fault.position));
  }
  const std::int64_t lowest = fault.kind == Fault::kIndex ? -fault.size : 0;
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: id {} at position {} is outside [{}, {})", place,
                                                          fault.id, fault.position, lowest, fault.size));
}

class Cache final : public RunCache {
 public:
  Cache(DeviceCache cache, const EngineDevice& on, Stream stream)
      : cache_(std::move(cache)), on_(on), stream_(stream) {}
  const KeyValueCacheOptions& options() const override { return cache_.options(); }
  std::size_t bytes() const override { return cache_.bytes(); }
  Status copy_block(std::int32_t from, std::int32_t to) override {
    return cache_.copy_block(from, to, *on_.runtime, on_.device, stream_);
  }
  const DeviceCache& get() const { return cache_; }

 private:
  DeviceCache cache_;
  const EngineDevice on_;
  const Stream stream_;
};

}  // namespace

ProgramGraphs::~ProgramGraphs() {
  for (Captured& captured : of_kind_) drop(captured);
}

void ProgramGraphs::drop(Captured& captured) {
  if (captured.graph) (void)runtime_.destroy_graph(*captured.graph);
  captured.graph.reset();
}

Result<std::unique_ptr<RunMemory>> Memory::create(const EngineDevice& on) {
  std::unique_ptr<Memory> context(new Memory(on));
  device::Runtime& runtime = *on.runtime;
  ACCORD_ASSIGN_OR_RETURN(context->stream_, runtime.create_stream(on.device, false));
  ACCORD_ASSIGN_OR_RETURN(context->caller_event_, runtime.create_event(on.device));
  ACCORD_ASSIGN_OR_RETURN(context->end_, runtime.create_event(on.device));
  ACCORD_ASSIGN_OR_RETURN(context->multiprocessors_, runtime.multiprocessors(on.device));
  ACCORD_ASSIGN_OR_RETURN(context->fault_, device::Memory::allocate(runtime, on.device, sizeof(Fault), "a run"));
  ACCORD_ASSIGN_OR_RETURN(context->workspace_, device::Memory::allocate(runtime, on.device, on.blas->workspace_bytes(),
                                                                        "the workspace of products"));
  constexpr std::size_t kArrivalBytes = kArrivals * sizeof(std::uint64_t);
  ACCORD_ASSIGN_OR_RETURN(context->arrivals_, device::Memory::allocate(runtime, on.device, kArrivalBytes, "a run"));
  ACCORD_RETURN_IF_ERROR(runtime.fill(context->arrivals_.data(), 0, kArrivalBytes, on.device, context->stream_));
  ACCORD_ASSIGN_OR_RETURN(context->host_fault_,
                          device::Memory::allocate_host(runtime, on.device, sizeof(Fault), "a run"));
  return std::unique_ptr<RunMemory>(std::move(context));
}

Memory::~Memory() {
  if (stream_.handle != nullptr) {
    (void)on_.runtime->synchronize(on_.device, stream_);
    (void)on_.runtime->destroy_stream(on_.device, stream_);
  }
  for (const device::Event event : {caller_event_, end_})
    if (event.handle != nullptr) (void)on_.runtime->destroy_event(event);
}

Result<std::unique_ptr<RunCache>> Memory::create_cache(const CachedParts& parts, const KeyValueCacheOptions& options) {
  ++layout_;
  ACCORD_ASSIGN_OR_RETURN(DeviceCache made, DeviceCache::create(parts.layers, options, *on_.runtime, on_.device));
  return std::unique_ptr<RunCache>(std::make_unique<Cache>(std::move(made), on_, stream_));
}

KeyValueCacheOptions Memory::passing_cache(const CachedParts& parts, std::int64_t tokens) const {
  KeyValueCacheOptions options{.blocks = quotient_up(std::max<std::int64_t>(1, tokens), kernels::kTokenGroup)};
  const bool is_exact = std::all_of(parts.layers.begin(), parts.layers.end(),
                                    [](const CachedLayer& layer) { return layer.dtype == DType::kBFloat16; });
  if (is_exact) options.dtype = DType::kBFloat16;
  return options;
}

Status Memory::place_arena(Program& program) {
  if (program.arena_bytes > arena_.size()) {
    ++layout_;
    arena_ = device::Memory();
    ACCORD_ASSIGN_OR_RETURN(
        arena_, device::Memory::allocate(*on_.runtime, on_.device, program.arena_bytes, "the engine's arena"));
  }
  program.place_arena(arena_.data());
  return Status();
}

Status Memory::place(Program& program, std::span<const TensorView> inputs, std::optional<Stream> after) {
  if (Status placed = place_arena(program); !placed.ok()) {
    (void)on_.runtime->synchronize(on_.device, stream_);  // the tables of the batch are still being copied
    return placed;
  }
  if (after) {
    ACCORD_RETURN_IF_ERROR(on_.runtime->record(caller_event_, on_.device, *after));
    ACCORD_RETURN_IF_ERROR(on_.runtime->wait(caller_event_, on_.device, stream_));
  }
  return place_inputs(program, inputs);
}

// The copies of the last run have ended, so its staged inputs are overwritten.
Status Memory::place_inputs(const Program& program, std::span<const TensorView> inputs) {
  std::size_t bytes = 0, at = 0;
  for (const TensorView& input : inputs) {
    if (input.buffer.device.type == DeviceType::kCpu) bytes += round_up(input.buffer.bytes(), kStagedAlignment);
  }
  const bool stages = bytes <= kMaxPinnedBytes;
  if (stages) ACCORD_RETURN_IF_ERROR(staging_.grow(bytes, on_));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Buffer& input = inputs[i].buffer;
    if (input.count == 0) continue;
    const void* from = input.data;
    if (stages && input.device.type == DeviceType::kCpu) {
      from = std::memcpy(staging_.data() + at, input.data, input.bytes());
      at += round_up(input.bytes(), kStagedAlignment);
    }
    std::byte* const to = program.bases[static_cast<std::size_t>(program.inputs[i])];
    ACCORD_RETURN_IF_ERROR(on_.runtime->copy(to, from, input.bytes(), on_.device, stream_));
  }
  return Status();
}

Status Memory::set_batch(std::span<const BatchRows> batch, const RunCache* cache) {
  if (cache == nullptr) return Status();
  // Graphs hold the addresses of the cache that they were captured with.
  const DeviceCache* const its = &static_cast<const Cache*>(cache)->get();
  if (std::exchange(cache_, its) != its) ++layout_;
  ACCORD_ASSIGN_OR_RETURN(const bool moved, batch_.set(batch, *on_.runtime, on_.device, stream_));
  if (moved) ++layout_;
  return Status();
}

DeviceRun Memory::run_of() const {
  return {{},
          *on_.runtime,
          *on_.blas,
          on_.device,
          stream_,
          multiprocessors_,
          reinterpret_cast<Fault*>(fault_.data()),
          workspace_.data(),
          cache_,
          batch_.tables(),
          batch_.kind(),
          reinterpret_cast<std::uint64_t*>(arrivals_.data())};
}

// A failed capture has run nothing, so the program runs step by step, in this run and all later ones.
Status Memory::capture(const Program& program, const Execution& execution, ProgramGraphs& graphs) {
  ProgramGraphs::Captured& captured = graphs.of_kind_[static_cast<std::size_t>(batch_.kind())];
  graphs.drop(captured);
  const Result<device::Graph> made = on_.runtime->capture(on_.device, stream_, [&] { return program.run(execution); });
  if (!made.ok()) {
    execution.started->clear();  // sums that were started by the failed capture
    graphs.capture_failed_ = true;
    return made.status();
  }
  captured.graph = *made;
  captured.layout = layout_;
  return Status();
}

Status Memory::run(const Program& program, const Execution& execution, ProgramState* state) {
  auto& graphs = static_cast<ProgramGraphs&>(*state);
  ProgramGraphs::Captured& captured = graphs.of_kind_[static_cast<std::size_t>(batch_.kind())];
  return run_steps(execution, [&](const Execution& placed) {
    const bool again = captured.runs++ > 0 && !graphs.capture_failed_;
    const bool is_current = again && captured.graph && captured.layout == layout_;
    const bool as_graph = is_current || (again && capture(program, placed, graphs).ok());
    return as_graph ? on_.runtime->launch_graph(*captured.graph, on_.device, stream_) : program.run(placed);
  });
}

Status Memory::run_steps(const Execution& execution, const AddSteps& add) {
  const DeviceRun run = run_of();
  Execution placed = execution;
  placed.target = &run;
  placed.device = on_.device;
  placed.stream = stream_;
  ACCORD_RETURN_IF_ERROR(on_.runtime->fill(run.fault, 0, sizeof(Fault), on_.device, stream_));
  const Status done = add(placed);
  const Status ended = wait(placed);  // also waits for what a failed step left in the stream
  return done.ok() ? ended : done;
}

// A collective that fails frees the stream and notifies its group.
Status Memory::wait(const Execution& execution) {
  ACCORD_RETURN_IF_ERROR(on_.runtime->copy(host_fault_.data(), fault_.data(), sizeof(Fault), on_.device, stream_));
  ACCORD_RETURN_IF_ERROR(wait_with_peers(execution.communicators));
  ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, stream_));
  for (const std::optional<Communicator>& communicator : execution.communicators) {
    if (communicator) ACCORD_RETURN_IF_ERROR(communicator->status());
  }
  return status_of(*reinterpret_cast<const Fault*>(host_fault_.data()));
}

// Nothing watches the collectives of a graph. A rank that has gone may have finished its part before. If the stream
// does not finish soon, the rank has not, and the group is aborted, which frees the stream.
Status Memory::wait_with_peers(std::span<const std::optional<Communicator>> communicators) {
  constexpr auto kPollInterval = std::chrono::milliseconds(10), kGracePeriod = std::chrono::milliseconds(1000);
  const bool has_peers = std::any_of(communicators.begin(), communicators.end(),
                                     [](const std::optional<Communicator>& each) { return each.has_value(); });
  if (!has_peers) return Status();
  ACCORD_RETURN_IF_ERROR(on_.runtime->record(end_, on_.device, stream_));
  Clock::time_point next_poll = Clock::now() + kPollInterval;
  std::optional<Clock::time_point> first_gone_at;
  while (true) {
    ACCORD_ASSIGN_OR_RETURN(const bool ended, on_.runtime->has_happened(end_));
    if (ended) return Status();
    std::this_thread::yield();
    const Clock::time_point now = Clock::now();
    if (now < next_poll) continue;
    next_poll = now + kPollInterval;
    for (std::optional<Communicator> communicator : communicators) {
      const std::vector<Rank> gone = communicator ? communicator->gone() : std::vector<Rank>();
      if (gone.empty()) continue;
      if (!first_gone_at) first_gone_at = now;
      if (now - *first_gone_at < kGracePeriod) continue;
      const std::string message = fmt::format("a run of the engine failed: rank {} is gone", fmt::join(gone, ", "));
      communicator->abort(message);
      ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, stream_));
      return Status(StatusCode::kPeerLost, message, gone);
    }
  }
}

Result<std::vector<TensorView>> Memory::outputs(const Program& program, bool copies) {
  std::vector<TensorView> outputs = program.output_views(on_.device);
  if (!copies) return outputs;
  std::size_t bytes = 0;
  for (const TensorView& output : outputs) bytes += round_up(output.buffer.bytes(), kStagedAlignment);
  const bool is_large = bytes > kMaxPinnedBytes;
  ACCORD_RETURN_IF_ERROR(is_large ? large_outputs_.grow(bytes) : copied_outputs_.grow(bytes, on_));
  std::byte* to = is_large ? large_outputs_.data() : copied_outputs_.data();
  for (TensorView& output : outputs) {
    Buffer& buffer = output.buffer;
    if (buffer.count > 0)
      ACCORD_RETURN_IF_ERROR(on_.runtime->copy(to, buffer.data, buffer.bytes(), on_.device, stream_));
    buffer.data = to;
    buffer.device = {};
    to += round_up(buffer.bytes(), kStagedAlignment);
  }
  ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, stream_));
  return outputs;
}

Status Memory::copy_to_cpu(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return Status();
  const bool stages = bytes <= kMaxPinnedBytes;
  if (stages) {
    ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, stream_));  // inputs may still be staged
    ACCORD_RETURN_IF_ERROR(staging_.grow(bytes, on_));
  }
  ACCORD_RETURN_IF_ERROR(on_.runtime->copy(stages ? staging_.data() : to, from, bytes, on_.device, stream_));
  ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, stream_));
  if (stages) std::memcpy(to, staging_.data(), bytes);
  return Status();
}

std::size_t Memory::reserve_choices(std::size_t choices, std::int64_t width) {
  chooser_.set_max_choices(choices);
  return chooser_.bytes_for(width, multiprocessors_);
}

Status Memory::choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices,
                             std::span<TokenId> tokens) {
  return chooser_.choose(run_of(), logits.buffer, logits.shape.back(), choices, tokens);
}

}  // namespace accord::engine::gpu
