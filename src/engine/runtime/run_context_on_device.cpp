// The part of RunContext for engines on a device: the programs are the same, but the memory is a DeviceContext's.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/rounding.hpp"
#include "engine/runtime/agreement.hpp"
#include "engine/runtime/run_context.hpp"

namespace accord::engine {

Status RunContext::begin_on_device() {
  if (!device_) {
    ACCORD_ASSIGN_OR_RETURN(device_, DeviceContext::create(*engine_->on_device()));
  }
  if (std::exchange(device_bindings_, engine_->bindings()) != engine_->bindings()) device_->invalidate_graphs();
  return Status();
}

Status RunContext::create_device_cache(std::span<const CachedLayer> layers, const KeyValueCacheOptions& options) {
  ACCORD_RETURN_IF_ERROR(begin_on_device());
  engine_->budget().release({kCache, cache_bytes()});
  device_cache_.reset();
  synchronized_shapes_.clear();
  device_->invalidate_graphs();
  const EngineDevice& on = device_->on();
  ACCORD_ASSIGN_OR_RETURN(DeviceCache made, DeviceCache::create(layers, options, *on.runtime, on.device));
  const Status fits = engine_->budget().reserve({kCache, made.bytes()});
  if (!fits.ok()) return Status(fits.code(), fits.message() + "; " + fitting_cache_text(options, made.bytes()));
  device_cache_ = std::move(made);
  return Status();
}

Status RunContext::create_temporary_device_cache(std::span<const CachedLayer> layers, std::int64_t blocks) {
  engine_->budget().release({kCache, temporary_device_cache_.bytes()});
  temporary_device_cache_ = DeviceCache();
  device_->invalidate_graphs();
  const EngineDevice& on = device_->on();
  KeyValueCacheOptions options{.blocks = blocks};
  // Keys and values already have the model's dtype.
  const bool is_exact = std::all_of(layers.begin(), layers.end(),
                                    [](const CachedLayer& layer) { return layer.dtype == DType::kBFloat16; });
  if (is_exact) options.dtype = DType::kBFloat16;
  ACCORD_ASSIGN_OR_RETURN(DeviceCache made, DeviceCache::create(layers, options, *on.runtime, on.device));
  ACCORD_RETURN_IF_ERROR(engine_->budget().reserve({kCache, made.bytes()}));
  temporary_device_cache_ = std::move(made);
  return Status();
}

Result<std::vector<TensorView>> RunContext::run_on_device(std::span<const TensorView> inputs,
                                                          std::optional<std::span<const SequenceRows>> sequences) {
  ACCORD_RETURN_IF_ERROR(begin_on_device());
  const Result<CachedProgram*> known = find_program(inputs);
  if (!known.ok() && engine_->divides_runs() && known.status().code() != StatusCode::kInvalidArgument)
    abort_peers(known.status());  // other stages have other ops
  ACCORD_ASSIGN_OR_RETURN(CachedProgram* const found, known);
  Program& program = found->program;
  ACCORD_RETURN_IF_ERROR(place_on_device(program, inputs, sequences));
  ACCORD_RETURN_IF_ERROR(sync_before_first_run());
  const Execution execution = execution_of(program);
  const Profiling profiling = profiling_.load(std::memory_order_relaxed);
  const Status ran = profiling == Profiling::kOff ? device_->run(program, execution, found->graph)
                                                  : run_steps_timed(program, execution, profiling == Profiling::kTrace);
  ACCORD_RETURN_IF_ERROR(end_on_device(ran));
  return outputs_of_device(program);
}

// Places memory, inputs and the tables of the batch.
Status RunContext::place_on_device(Program& program, std::span<const TensorView> inputs,
                                   std::optional<std::span<const SequenceRows>> sequences) {
  ACCORD_RETURN_IF_ERROR(set_batch(program, sequences));
  ACCORD_RETURN_IF_ERROR(reserve_arena(program.arena_bytes));
  ACCORD_RETURN_IF_ERROR(device_->place_arena(program));
  const bool leaves_outputs = !engine_->copies_outputs() && !keeps_outputs_;
  const bool reads_inputs = std::any_of(inputs.begin(), inputs.end(), [](const TensorView& input) {
    return input.buffer.device.type != DeviceType::kCpu;
  });
  if (leaves_outputs || reads_inputs) ACCORD_RETURN_IF_ERROR(device_->begin_after(caller_stream_));
  if (program.batch_rows) ACCORD_RETURN_IF_ERROR(device_->set_batch(batch_, current_device_cache_));
  return device_->copy_inputs(program, inputs);
}

// A shape that runs for the first time may free memory. A device then waits until all its kernels have ended,
// including those of other ranks in this process, which may wait for this rank's kernels. So nothing is launched
// before all ranks have their memory.
Status RunContext::sync_before_first_run() {
  if (synchronized_shapes_.find(key_) != nullptr) return Status();
  for (auto& [group, communicator] : engine_->peers()) {
    const Status synchronized = communicator.barrier();
    if (!synchronized.ok())
      return synchronized.with_context(fmt::format("before the first run of a shape, group \"{}\"", group));
  }
  synchronized_shapes_.add(key_, {});
  return Status();
}

// A fault that the kernels of one stage find, such as an id outside its table, is known only at the end of its run,
// when the stage has sent what the others wait for. Any other failure belongs to this device alone and ends the run
// of the other ranks, which are waiting.
Status RunContext::end_on_device(const Status& ran) {
  if (!ran.ok() && ran.code() != StatusCode::kInvalidArgument) {
    abort_peers(ran);
    return ran;
  }
  if (!engine_->divides_runs()) return ran;
  std::map<std::string, Communicator> stages = engine_->peers();
  std::erase_if(stages, [](const auto& group) { return group.first != kStageGroup; });
  return agree(stages, {.status = ran, .digest = "", .failure_phrase = "failed in its run"});
}

Result<std::vector<TensorView>> RunContext::outputs_of_device(const Program& program) {
  constexpr std::size_t kAligned = 64;
  const bool copies = engine_->copies_outputs() && !keeps_outputs_;
  std::size_t bytes = 0;
  for (const Tensor& output : program.outputs) bytes += round_up(output.bytes(), kAligned);
  if (copies && bytes > arena_.size()) {
    ACCORD_ASSIGN_OR_RETURN(Region larger, Region::allocate(bytes, "the engine's outputs"));
    arena_.clear();
    outgrown_.push_back(std::exchange(arena_, std::move(larger)));
  }
  std::vector<TensorView> outputs;
  outputs.reserve(program.outputs.size());
  std::size_t at = 0;
  for (const Tensor& output : program.outputs) {
    std::byte* const made = program.bases[static_cast<std::size_t>(output.storage)] + output.offset;
    Buffer buffer{made, static_cast<std::size_t>(output.count()), output.dtype, engine_->device()};
    if (copies) {
      buffer.data = arena_.data() + at;
      buffer.device = {};
      ACCORD_RETURN_IF_ERROR(device_->copy_to_host(buffer.data, made, buffer.bytes()));
      at += round_up(output.bytes(), kAligned);
    }
    outputs.push_back({buffer, output.sizes()});
  }
  return outputs;
}

Status RunContext::copy_output(const Buffer& output, void* to) {
  return device_->copy_to_host(to, output.data, output.bytes());
}

Status RunContext::reserve_sampling(std::size_t choices, std::int64_t width) {
  if (engine_->on_device() == nullptr) return Status();
  ACCORD_RETURN_IF_ERROR(begin_on_device());
  const std::size_t bytes = device_->set_max_choices(choices, width);
  ACCORD_RETURN_IF_ERROR(engine_->budget().reserve({kSampling, bytes}));
  reserved_sampling_ += bytes;
  return Status();
}

Status RunContext::choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices,
                                 std::span<TokenId> tokens) {
  return device_->choose_tokens(logits, choices, tokens);
}

}  // namespace accord::engine
