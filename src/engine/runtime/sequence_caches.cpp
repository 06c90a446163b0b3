// A language model's rows belong to sequences whose keys and values stay in a cache of blocks between runs. Runs
// without sequences use a cache of their own, which grows to the longest run.
#include "engine/runtime/sequence_caches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/rounding.hpp"

namespace accord::engine {

SequenceCaches::~SequenceCaches() {
  engine_.budget().release({kCaches, (is_shared_ ? 0 : bytes()) + (temporary_cache_ ? temporary_cache_->bytes() : 0)});
}

KeyValueCacheOptions SequenceCaches::options_of_rank(KeyValueCacheOptions options) const {
  if (engine_.model().context) options.block_tokens /= engine_.model().context->ranks;
  return options;
}

KeyValueCacheOptions SequenceCaches::options_of_group(KeyValueCacheOptions options) const {
  if (engine_.model().context) options.block_tokens *= engine_.model().context->ranks;
  return options;
}

Status SequenceCaches::create(RunMemory& memory, const CachedParts& parts, const KeyValueCacheOptions& options) {
  if (const auto& context = engine_.model().context) {
    if (options.block_tokens < 1 || options.block_tokens % context->least_block_tokens() != 0)
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("a block of the cache holds {} tokens, which is not a multiple of {}: group \"{}\" "
                                "divides each block into {} parts of a multiple of {} tokens",
                                options.block_tokens, context->least_block_tokens(), kContextGroup, context->parts,
                                kernels::kTokenGroup));
  }
  engine_.budget().release({kCaches, bytes()});
  cache_.reset();
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<RunCache> made, memory.create_cache(parts, options_of_rank(options)));
  const Status fits = engine_.budget().reserve({kCaches, made->bytes()});
  if (!fits.ok()) return Status(fits.code(), fits.message() + "; " + fitting_cache_text(options, made->bytes()));
  cache_ = std::move(made);
  return Status();
}

// Says how many tokens the cache could have beside what is already taken.
std::string SequenceCaches::fitting_cache_text(const KeyValueCacheOptions& wanted, std::size_t bytes) const {
  const Result<std::uint64_t> left = engine_.budget().left();
  const std::uint64_t block_bytes = bytes / static_cast<std::uint64_t>(wanted.blocks);
  const std::uint64_t blocks = left.ok() ? *left / std::max<std::uint64_t>(block_bytes, 1) : 0;
  const std::uint64_t tokens = blocks * static_cast<std::uint64_t>(wanted.block_tokens);
  return blocks == 0 ? "no cache fits" : fmt::format("a cache of {} tokens would fit", tokens);
}

Status SequenceCaches::copy_block(std::int32_t from, std::int32_t to) {
  const std::int64_t blocks = cache_ ? cache_->options().blocks : 0;
  if (from < 0 || to < 0 || from >= blocks || to >= blocks) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("block {} cannot be copied to block {}: the cache has {} blocks", from, to, blocks));
  }
  return cache_->copy_block(from, to);
}

std::int64_t SequenceCaches::block_tokens() const { return options_of_group(used_->options()).block_tokens; }

Status SequenceCaches::set_batch(RunMemory& memory, std::optional<std::int64_t> rows,
                                 std::optional<std::span<const SequenceRows>> sequences) {
  batch_.clear();
  if (!rows) {
    if (!sequences) return memory.set_batch({}, nullptr);
    return Status(StatusCode::kInvalidArgument, "sequences were given, but this engine has no cached attention");
  }
  if (!sequences) return set_whole_batch(memory, *rows);
  if (!cache_) return Status(StatusCode::kWrongState, "sequences need a cache: call create_cache() first");
  std::int64_t first_row = 0;
  for (const SequenceRows& sequence : *sequences) {
    batch_.push_back(
        {first_row, {sequence.rows, sequence.context, sequence.blocks}, sequence.source_rows, sequence.source_blocks});
    first_row += sequence.rows;
  }
  ACCORD_RETURN_IF_ERROR(check(batch_, *rows, options_of_group(cache_->options())));
  used_ = cache_.get();
  return memory.set_batch(batch_, used_);
}

// Treats all rows as one new sequence, in a cache that grows to the longest.
Status SequenceCaches::set_whole_batch(RunMemory& memory, std::int64_t rows) {
  const auto tokens = [](const KeyValueCacheOptions& options) { return options.blocks * options.block_tokens; };
  if (!temporary_cache_ || tokens(options_of_group(temporary_cache_->options())) < rows) {
    ACCORD_ASSIGN_OR_RETURN(const CachedParts parts, cached_parts(engine_.graph()));
    if (temporary_cache_) engine_.budget().release({kCaches, temporary_cache_->bytes()});
    temporary_cache_.reset();
    KeyValueCacheOptions options = memory.passing_cache(parts, rows);
    if (const auto& context = engine_.model().context) {
      options.block_tokens = context->least_block_tokens();
      options.blocks = quotient_up(std::max<std::int64_t>(1, rows), options.block_tokens);
    }
    ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<RunCache> made, memory.create_cache(parts, options_of_rank(options)));
    ACCORD_RETURN_IF_ERROR(engine_.budget().reserve({kCaches, made->bytes()}));
    temporary_cache_ = std::move(made);
    temporary_blocks_.resize(static_cast<std::size_t>(temporary_cache_->options().blocks));
    std::iota(temporary_blocks_.begin(), temporary_blocks_.end(), 0);
  }
  if (rows > 0) batch_.push_back({0, {rows, 0, temporary_blocks_}});
  used_ = temporary_cache_.get();
  return memory.set_batch(batch_, used_);
}

}  // namespace accord::engine
