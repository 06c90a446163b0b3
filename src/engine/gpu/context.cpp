// A run puts its inputs, its kernels and the copy of its fault into one stream and waits for that stream. The kernels
// of a program know only addresses that stay the same from run to run: inputs are copied to their place in the arena,
// and the tables of a batch to theirs. A program is therefore launched as one graph from its second run on. A program
// that cannot be captured runs step by step.
#include "engine/gpu/context.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "engine/graph/node_access.hpp"

namespace accord::engine {
namespace {

Status status_of(const Fault& fault) {
  if (fault.count == 0) return Status();
  const auto* const node = reinterpret_cast<const Node*>(static_cast<std::uintptr_t>(fault.node));
  const std::string place = node == nullptr ? "a kernel" : node_text(*node);
  if (fault.kind == Fault::kDivision) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: a whole number is divided by zero at position {}", place, fault.position));
  }
  const std::int64_t least = fault.kind == Fault::kIndex ? -fault.size : 0;
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: id {} at position {} is outside [{}, {})", place,
                                                          fault.id, fault.position, least, fault.size));
}

}  // namespace

Result<EngineDevice> find_engine_device(Device device) {
  EngineDevice on;
  on.device = device;
  ACCORD_ASSIGN_OR_RETURN(on.runtime, device::runtime_of(device.type));
  const int count = on.runtime->count();
  if (device.index < 0 || device.index >= count) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("there is no {}: {} devices were found", to_string(device), count));
  }
  ACCORD_ASSIGN_OR_RETURN(on.blas, device::blas_of(device.type));
  return on;
}

ProgramGraph& ProgramGraph::operator=(ProgramGraph&& other) noexcept {
  if (this == &other) return *this;
  drop();
  runtime_ = other.runtime_;
  graph_ = std::exchange(other.graph_, std::nullopt);
  layout_ = other.layout_;
  runs_ = other.runs_;
  is_refused_ = other.is_refused_;
  return *this;
}

void ProgramGraph::drop() {
  if (graph_) (void)runtime_->destroy_graph(*graph_);
  graph_.reset();
}

Result<std::unique_ptr<DeviceContext>> DeviceContext::create(const EngineDevice& on) {
  std::unique_ptr<DeviceContext> context(new DeviceContext(on));
  device::Runtime& runtime = *on.runtime;
  ACCORD_ASSIGN_OR_RETURN(context->stream_, runtime.create_stream(on.device, false));
  ACCORD_ASSIGN_OR_RETURN(context->callers_, runtime.create_event(on.device));
  ACCORD_ASSIGN_OR_RETURN(context->end_, runtime.create_event(on.device));
  ACCORD_ASSIGN_OR_RETURN(context->multiprocessors_, runtime.multiprocessors(on.device));
  ACCORD_ASSIGN_OR_RETURN(context->fault_, DeviceMemory::allocate(runtime, on.device, sizeof(Fault), "a run"));
  ACCORD_ASSIGN_OR_RETURN(context->workspace_, DeviceMemory::allocate(runtime, on.device, on.blas->workspace_bytes(),
                                                                      "the workspace of products"));
  ACCORD_ASSIGN_OR_RETURN(void* const found, runtime.allocate_host(on.device, sizeof(Fault)));
  context->found_ = new (found) Fault();
  return context;
}

DeviceContext::~DeviceContext() {
  if (stream_.handle != nullptr) {
    (void)on_.runtime->synchronize(on_.device, stream_);
    (void)on_.runtime->destroy_stream(on_.device, stream_);
  }
  for (const device::Event event : {callers_, end_})
    if (event.handle != nullptr) (void)on_.runtime->destroy_event(event);
  if (found_ != nullptr) (void)on_.runtime->release_host(on_.device, found_);
}

Status DeviceContext::place_arena(Program& program) {
  if (program.arena_bytes > arena_.size()) {
    ++layout_;
    arena_ = DeviceMemory();
    ACCORD_ASSIGN_OR_RETURN(
        arena_, DeviceMemory::allocate(*on_.runtime, on_.device, program.arena_bytes, "the engine's arena"));
  }
  for (const Program::ArenaPiece& piece : program.arena) {
    program.bases[static_cast<std::size_t>(piece.storage)] = arena_.data() + piece.offset;
  }
  return Status();
}

Status DeviceContext::begin_after(Stream stream) {
  ACCORD_RETURN_IF_ERROR(on_.runtime->record(callers_, on_.device, stream));
  return on_.runtime->wait(callers_, on_.device, stream_);
}

Status DeviceContext::copy_inputs(const Program& program, std::span<const TensorView> inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Buffer& from = inputs[i].buffer;
    if (from.count == 0) continue;
    std::byte* const to = program.bases[static_cast<std::size_t>(program.inputs[i])];
    ACCORD_RETURN_IF_ERROR(on_.runtime->copy(to, from.data, from.bytes(), on_.device, stream_));
  }
  return Status();
}

Status DeviceContext::set_batch(std::span<const BatchRows> batch, const DeviceCache* cache) {
  // Graphs hold the addresses of the cache that they were captured with.
  if (std::exchange(cache_, cache) != cache) ++layout_;
  ACCORD_ASSIGN_OR_RETURN(const bool moved, batch_.set(batch, *on_.runtime, on_.device, stream_));
  if (moved) ++layout_;
  return Status();
}

DeviceRun DeviceContext::run_of() const {
  return {*on_.runtime,      *on_.blas,        on_.device,
          stream_,           multiprocessors_, reinterpret_cast<Fault*>(fault_.data()),
          workspace_.data(), cache_,           batch_.tables()};
}

Status DeviceContext::put_steps(const Program& program, const Execution& execution) {
  for (const ProgramStep& step : program.steps) ACCORD_RETURN_IF_ERROR(step.run(execution));
  return Status();
}

// A failed capture has run nothing, so the program runs step by step, in this run and all later ones.
Status DeviceContext::capture(const Program& program, const Execution& execution, ProgramGraph& graph) {
  graph.drop();
  graph.runtime_ = on_.runtime;
  const Result<device::Graph> made =
      on_.runtime->capture(on_.device, stream_, [&] { return put_steps(program, execution); });
  if (!made.ok()) {
    execution.started->clear();  // sums that were started by the failed capture
    graph.is_refused_ = true;
    return made.status();
  }
  graph.graph_ = *made;
  graph.layout_ = layout_;
  return Status();
}

Status DeviceContext::run(const Program& program, const Execution& execution, ProgramGraph& graph) {
  return run_steps(execution, [&](const Execution& placed) {
    const bool again = graph.runs_++ > 0 && !graph.is_refused_;
    const bool stands = again && graph.graph_ && graph.layout_ == layout_;
    const bool as_graph = stands || (again && capture(program, placed, graph).ok());
    return as_graph ? on_.runtime->launch_graph(*graph.graph_, on_.device, stream_) : put_steps(program, placed);
  });
}

Status DeviceContext::run_steps(const Program& program, const Execution& execution, const AfterStep& after) {
  return run_steps(execution, [&](const Execution& placed) {
    for (const ProgramStep& step : program.steps) {
      ACCORD_RETURN_IF_ERROR(step.run(placed));
      ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, stream_));
      ACCORD_RETURN_IF_ERROR(after(step, placed));
    }
    return Status();
  });
}

Status DeviceContext::run_steps(Execution execution, const PutSteps& put) {
  const DeviceRun run = run_of();
  execution.on_device = &run;
  ACCORD_RETURN_IF_ERROR(on_.runtime->fill(run.fault, 0, sizeof(Fault), on_.device, stream_));
  const Status done = put(execution);
  const Status ended = wait(execution);  // also waits for what a failed step left in the stream
  return done.ok() ? ended : done;
}

// A collective that fails frees the stream and notifies its group.
Status DeviceContext::wait(const Execution& execution) {
  ACCORD_RETURN_IF_ERROR(on_.runtime->copy(found_, fault_.data(), sizeof(Fault), on_.device, stream_));
  ACCORD_RETURN_IF_ERROR(wait_with_peers(execution.communicators));
  ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, stream_));
  for (const std::optional<Communicator>& communicator : execution.communicators) {
    if (communicator) ACCORD_RETURN_IF_ERROR(communicator->status());
  }
  return status_of(*found_);
}

// Nothing watches the collectives of a graph. A rank that has gone may have finished its part before. If the stream
// does not finish soon, the rank has not, and the group is aborted, which frees the stream.
Status DeviceContext::wait_with_peers(std::span<const std::optional<Communicator>> communicators) {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(10), kForTheRest = std::chrono::milliseconds(1000);
  const bool has_peers = std::any_of(communicators.begin(), communicators.end(),
                                     [](const std::optional<Communicator>& each) { return each.has_value(); });
  if (!has_peers) return Status();
  ACCORD_RETURN_IF_ERROR(on_.runtime->record(end_, on_.device, stream_));
  Clock::time_point next_look = Clock::now() + kBetweenLooks;
  std::optional<Clock::time_point> first_seen;
  while (true) {
    ACCORD_ASSIGN_OR_RETURN(const bool ended, on_.runtime->has_happened(end_));
    if (ended) return Status();
    std::this_thread::yield();
    const Clock::time_point now = Clock::now();
    if (now < next_look) continue;
    next_look = now + kBetweenLooks;
    for (std::optional<Communicator> communicator : communicators) {
      const std::vector<Rank> gone = communicator ? communicator->gone() : std::vector<Rank>();
      if (gone.empty()) continue;
      if (!first_seen) first_seen = now;
      if (now - *first_seen < kForTheRest) continue;
      const std::string message = fmt::format("a run of the engine: rank {} has gone", fmt::join(gone, ", "));
      communicator->abort(message);
      ACCORD_RETURN_IF_ERROR(on_.runtime->synchronize(on_.device, stream_));
      return Status(StatusCode::kPeerLost, message, gone);
    }
  }
}

Status DeviceContext::copy_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return Status();
  ACCORD_RETURN_IF_ERROR(on_.runtime->copy(to, from, bytes, on_.device, stream_));
  return on_.runtime->synchronize(on_.device, stream_);
}

std::size_t DeviceContext::expect_choices(std::size_t most, std::int64_t width) {
  chooser_.set_most(most);
  return chooser_.bytes_for(width, multiprocessors_);
}

Status DeviceContext::choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices,
                                    std::span<TokenId> tokens) {
  return chooser_.choose(run_of(), logits.buffer, logits.shape.back(), choices, tokens);
}

Status DeviceContext::copy_block(const DeviceCache& cache, std::int32_t from, std::int32_t to) {
  return cache.copy_block(from, to, *on_.runtime, on_.device, stream_);
}

}  // namespace accord::engine
