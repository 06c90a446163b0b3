#pragma once
// The keys and values of a context's sequences, and which rows of the current run belong to which sequence.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/program/batch.hpp"
#include "engine/program/program.hpp"
#include "engine/program/run_memory.hpp"
#include "engine/runtime/loaded_engine.hpp"

namespace accord::engine {

/// Memory is that of a RunMemory, which outlives the caches, and counts against the engine's limit.
class SequenceCaches {
 public:
  /// `engine` outlives the caches.
  explicit SequenceCaches(const LoadedEngine& engine) : engine_(engine) {}
  ~SequenceCaches();
  SequenceCaches(const SequenceCaches&) = delete;
  SequenceCaches& operator=(const SequenceCaches&) = delete;

  /// Replaces the cache by one for these parts of the engine's graph.
  Status create(RunMemory& memory, const CachedParts& parts, const KeyValueCacheOptions& options);
  /// Uses the cache of `others`, which has all layers of the engine's graph, from now on. It counts where it was made.
  void share(const SequenceCaches& others) {
    cache_ = others.cache_;
    is_shared_ = true;
  }
  /// Implements EngineContext::copy_block().
  Status copy_block(std::int32_t from, std::int32_t to);
  /// Size of the cache that create() made.
  std::size_t bytes() const { return cache_ ? cache_->bytes() : 0; }

  /// Sets which of a run's `rows` belong to which sequence; nullopt: the program has no cached attention. Without
  /// sequences, all rows are one new sequence.
  Status set_batch(RunMemory& memory, std::optional<std::int64_t> rows,
                   std::optional<std::span<const SequenceRows>> sequences);
  /// Tokens of a block, on all ranks that divide it. REQUIRES: set_batch() for rows.
  std::int64_t block_tokens() const;
  /// The rows of the current run.
  std::span<const BatchRows> batch() const { return batch_; }

 private:
  /// Options of this rank's cache, for those of the ranks that divide it.
  KeyValueCacheOptions options_of_rank(KeyValueCacheOptions options) const;
  KeyValueCacheOptions options_of_group(KeyValueCacheOptions options) const;
  Status set_whole_batch(RunMemory& memory, std::int64_t rows);
  std::string fitting_cache_text(const KeyValueCacheOptions& wanted, std::size_t bytes) const;

  const LoadedEngine& engine_;
  std::shared_ptr<RunCache> cache_;
  bool is_shared_ = false;                     ///< by share()
  std::unique_ptr<RunCache> temporary_cache_;  ///< of runs without sequences: each begins anew
  std::vector<std::int32_t> temporary_blocks_;
  const RunCache* used_ = nullptr;  ///< by the current run
  std::vector<BatchRows> batch_;
};

}  // namespace accord::engine
