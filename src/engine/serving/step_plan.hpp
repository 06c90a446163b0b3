#pragma once
// One step of a model, as data: a flat batch of rows of several sequences.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accord/generation.hpp"
#include "engine/serving/block_pool.hpp"

namespace accord::engine {

/// Bounds of a plan: the sizes of the model and its cache, equal on all ranks.
struct PlanLimits {
  std::int32_t blocks = 0;
  std::int32_t block_tokens = 16;
  std::int32_t max_context = 0;     ///< tokens of one sequence
  std::int32_t vocabulary = 0;      ///< tokens are below this
  std::int32_t max_sequences = 64;  ///< in one step
  std::int32_t max_rows = 512;      ///< tokens that one step computes
  std::int32_t max_source = 0;      ///< rows of one source; 0: the model has no encoder
  /// The tokens of a prompt that stand for the rows of its source, one after the other; without it, all tokens attend
  /// to the source, which is in the cache.
  std::optional<TokenId> source_token = {};
  std::vector<std::string> adapters = {};  ///< their names

  bool operator==(const PlanLimits&) const = default;
};

/// The rows of one sequence in a step, and the location of its cache.
struct PlannedSequence {
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
  std::int32_t context = 0;            ///< tokens in the cache before this step: the position of the first row
  std::int32_t first_block = 0;        ///< of its block table, in StepPlan::blocks
  std::int32_t block_count = 0;        ///< exactly enough for context + rows tokens
  std::int32_t source_rows = 0;        ///< of its source, whose blocks follow its own table, or which is in source_slot
  std::int32_t source_slot = kNoSlot;  ///< of a source whose rows tokens stand for
  std::int32_t first_source_row = 0;   ///< that a token of this step stands for; earlier tokens stand for those before
  std::int32_t adapter = 0;            ///< in PlanLimits::adapters, counted from 1; 0: none

  static constexpr std::int32_t kNoSlot = -1;

  bool operator==(const PlannedSequence&) const = default;
};

/// Block `from` is to be copied to `to`.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;

  bool operator==(const BlockCopy&) const = default;
};

/// A source that the encoder computes before the step.
struct NewSource {
  std::int32_t sequence = 0;  ///< in StepPlan::sequences
  std::shared_ptr<const std::vector<SourceTensor>> tensors;

  bool operator==(const NewSource& other) const { return sequence == other.sequence && *tensors == *other.tensors; }
};

/// One step. Row r is token tokens[r] at positions[r] of its sequence. Its keys and values are stored in slot
/// (position % block_tokens) of the block at index (position / block_tokens) of the table. It attends to all positions
/// up to its own.
///
/// Sequences with one row come first. No cell is written by two sequences. The vectors keep their memory from step to
/// step.
struct StepPlan {
  std::uint64_t step = 0;
  std::int32_t block_tokens = 16;
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> positions;
  std::vector<PlannedSequence> sequences;
  std::vector<BlockId> blocks;           ///< the sequences' block tables, one after the other
  std::vector<BlockCopy> copies;         ///< to be done before anything else, in this order
  std::vector<std::int32_t> logit_rows;  ///< ascending: rows whose logits are needed
  std::vector<NewSource> sources;        ///< ascending by sequence

  bool empty() const { return sequences.empty(); }
  void clear();
  std::span<const BlockId> table(const PlannedSequence& sequence) const {
    return std::span(blocks).subspan(static_cast<std::size_t>(sequence.first_block),
                                     static_cast<std::size_t>(sequence.block_count));
  }
  /// Returns the blocks of the sequence's source.
  std::span<const BlockId> source_table(const PlannedSequence& sequence) const;
  bool operator==(const StepPlan&) const = default;
};

/// Fails with kCorrupt, saying what in `plan` is inconsistent or exceeds `limits`. After this check a model may use
/// the plan without further checks.
Status check_plan(const StepPlan& plan, const PlanLimits& limits);

/// Writes the plan to `bytes`, whose memory is reused: 48 bytes, 4 for each row, block of a table and wanted row, 8 for
/// each copy, 24 for each sequence, and the tensors of new sources. Little-endian.
void pack(const StepPlan& plan, std::vector<std::byte>& bytes);

/// Reads the output of pack(). Accepts any bytes: fails with kCorrupt, and an empty plan, if they are damaged or
/// check_plan() fails.
Status unpack(std::span<const std::byte> bytes, const PlanLimits& limits, StepPlan& plan);

}  // namespace accord::engine
