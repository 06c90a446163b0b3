#include "engine/host/memory.hpp"

#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"

namespace accord::engine::host {
namespace {

class Cache final : public RunCache {
 public:
  explicit Cache(KeyValueCache cache) : cache_(std::move(cache)) {}
  const KeyValueCacheOptions& options() const override { return cache_.options(); }
  std::size_t bytes() const override { return cache_.bytes(); }
  Status copy_block(std::int32_t from, std::int32_t to) override {
    cache_.copy_block(from, to);
    return Status();
  }
  const KeyValueCache& get() const { return cache_; }

 private:
  KeyValueCache cache_;
};

}  // namespace

Result<std::unique_ptr<RunCache>> Memory::create_cache(const CachedParts& parts, const KeyValueCacheOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(KeyValueCache made, KeyValueCache::create(parts, options));
  return std::unique_ptr<RunCache>(std::make_unique<Cache>(std::move(made)));
}

KeyValueCacheOptions Memory::passing_cache(const CachedParts& parts, std::int64_t tokens) const {
  const std::int64_t groups = quotient_up(std::max<std::int64_t>(1, tokens), kernels::kTokenGroup);
  // One block, which has one copy of the states.
  if (!parts.states.empty()) return {.blocks = 1, .block_tokens = groups * kernels::kTokenGroup};
  return {.blocks = groups};
}

Status Memory::set_batch(std::span<const BatchRows>, const RunCache* cache) {
  run_.cache = cache == nullptr ? nullptr : &static_cast<const Cache*>(cache)->get();
  return Status();
}

Status Memory::place(Program& program, std::span<const TensorView> inputs, std::optional<Stream>) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    program.bases[static_cast<std::size_t>(program.inputs[i])] = static_cast<std::byte*>(inputs[i].buffer.data);
  }
  ACCORD_RETURN_IF_ERROR(arena_.grow(program.arena_bytes));
  program.place_arena(arena_.data());
  return Status();
}

Status Memory::run(const Program& program, const Execution& execution, ProgramState*) {
  return run_steps(execution, [&](const Execution& placed) { return program.run(placed); });
}

Status Memory::run_steps(const Execution& execution, const AddSteps& add) {
  Execution placed = execution;
  placed.target = &run_;
  return add(placed);
}

Result<std::vector<TensorView>> Memory::outputs(const Program& program, bool) { return program.output_views({}); }

Status Memory::copy_to_cpu(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return Status();
}

std::size_t Memory::reserve_choices(std::size_t, std::int64_t) { return 0; }

Status Memory::choose_tokens(const TensorView&, std::span<const TokenChoice>, std::span<TokenId>) {
  return Status(StatusCode::kUnsupported, "on the CPU, tokens are chosen by a Sampler");
}

}  // namespace accord::engine::host
