#pragma once
// Context parallelism: the ranks of a group divide the tokens of each sequence, and with them the cache and the rows of
// a run.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/status.hpp"
#include "engine/program/batch.hpp"
#include "kernels/attention/paged_attention.hpp"

namespace accord::engine {

/// This rank's share of each block of the cache, which is divided into `parts` runs of tokens: as many for each rank.
struct ContextShare {
  Rank rank = 0;
  int ranks = 1;
  int parts = 1;   ///< a multiple of `ranks`
  int group = -1;  ///< index of the communicator among the engine's; -1 with one rank

  int parts_of_rank() const { return parts / ranks; }
  /// A multiple of which a block holds.
  std::int64_t least_block_tokens() const { return parts * kernels::kTokenGroup; }
};

/// Rows of a sequence with consecutive positions whose keys and values the same rank keeps.
struct ContextRun {
  std::size_t sequence = 0;  ///< in the batch
  std::int64_t position = 0;
  std::int64_t rows = 0;
  Rank keeper = 0;
  std::int64_t cached = 0;     ///< number of the first row's token in the keeper's cache
  bool is_everywhere = false;  ///< every rank computes it; otherwise only the keeper
  std::int64_t at = 0;         ///< of its first row, among the rows of the keeper or those that every rank computes
};

/// The rows of a run, divided among the ranks. A rank's tensors have first the rows that it alone computes, then those
/// that every rank computes.
class ContextRows {
 public:
  /// Divides the rows of `batch`. `everywhere`: ascending numbers of rows that every rank computes. `block_tokens`: of
  /// the whole group, a multiple of share.least_block_tokens().
  void divide(const ContextShare& share, std::span<const BatchRows> batch, std::span<const std::int64_t> everywhere,
              std::int64_t block_tokens);

  const ContextShare& share() const { return share_; }
  /// Ascending by position for each sequence.
  std::span<const ContextRun> runs() const { return runs_; }
  /// Rows of the batch that this rank computes, in the order of its tensors.
  std::span<const std::int64_t> rows() const { return rows_; }
  /// Rows that only this rank computes, the most that a rank has of them, and the rows that every rank computes.
  std::int64_t own() const { return own_; }
  std::int64_t most_own() const { return most_own_; }
  std::int64_t everywhere() const { return everywhere_; }
  /// The tokens of one of this rank's parts, from 0.
  kernels::TokenPart token_part(int part) const;

 private:
  ContextShare share_;
  std::int64_t part_tokens_ = 0;
  std::vector<ContextRun> runs_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> rows_everywhere_;
  std::int64_t own_ = 0, most_own_ = 0, everywhere_ = 0;
};

}  // namespace accord::engine
