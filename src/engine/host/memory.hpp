#pragma once
// The memory of a context on the CPU.

#include "engine/host/run.hpp"
#include "engine/program/region.hpp"
#include "engine/program/run_memory.hpp"

namespace accord::engine::host {

class Memory final : public RunMemory {
 public:
  explicit Memory(int threads) : pool_(threads), run_(pool_) {
    run_.exchanges = &exchanges_;
    run_.attention_exchange = &attention_exchange_;
  }

  Result<std::unique_ptr<RunCache>> create_cache(const CachedParts& parts,
                                                 const KeyValueCacheOptions& options) override;
  KeyValueCacheOptions passing_cache(const CachedParts& parts, std::int64_t tokens) const override;
  void forget_communicators() override { exchanges_.clear(); }
  void abort(std::string_view reason) override { exchanges_.abort(reason); }

  std::unique_ptr<ProgramState> create_state() const override { return nullptr; }
  Status set_batch(std::span<const BatchRows> batch, const RunCache* cache) override;
  Status place(Program& program, std::span<const TensorView> inputs, std::optional<Stream> after) override;

  Status run(const Program& program, const Execution& execution, ProgramState* state) override;
  Status run_steps(const Execution& execution, const AddSteps& add) override;
  Status wait_for_steps() override { return Status(); }

  bool frees_memory_after_kernels() const override { return false; }
  bool shows_faults_at_end() const override { return false; }

  Result<std::vector<TensorView>> outputs(const Program& program, bool copies) override;
  Status copy_to_cpu(void* to, const void* from, std::size_t bytes) override;
  std::size_t arena_bytes() const override { return arena_.size(); }

  std::size_t reserve_choices(std::size_t choices, std::int64_t width) override;
  Status choose_tokens(const TensorView& logits, std::span<const TokenChoice> choices,
                       std::span<TokenId> tokens) override;

 private:
  ThreadPool pool_;
  ExpertExchanges exchanges_;
  AttentionExchange attention_exchange_;
  Run run_;
  GrowingRegion arena_{"the engine's arena"};
};

}  // namespace accord::engine::host
