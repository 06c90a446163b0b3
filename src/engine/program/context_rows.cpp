#include "engine/program/context_rows.hpp"

#include <algorithm>

namespace accord::engine {

void ContextRows::divide(const ContextShare& share, std::span<const BatchRows> batch,
                         std::span<const std::int64_t> everywhere, std::int64_t block_tokens) {
  share_ = share;
  part_tokens_ = block_tokens / share.parts;
  const std::int64_t kept_tokens = block_tokens / share.ranks;  // of a block, by each rank
  runs_.clear();
  rows_.clear();
  rows_everywhere_.clear();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(share.ranks));
  auto next = everywhere.begin();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const kernels::SequenceRows& sequence = batch[i].rows;
    for (std::int64_t row = 0; row < sequence.rows;) {
      const std::int64_t position = sequence.context + row, place = position % block_tokens;
      const std::int64_t global = batch[i].first_row + row;
      while (next != everywhere.end() && *next < global) ++next;
      ContextRun run{.sequence = i, .position = position, .keeper = static_cast<Rank>(place / kept_tokens)};
      run.is_everywhere = next != everywhere.end() && *next == global;
      run.rows = 1;
      if (!run.is_everywhere) {
        run.rows = std::min(sequence.rows - row, kept_tokens - place % kept_tokens);
        if (next != everywhere.end()) run.rows = std::min(run.rows, *next - global);
      }
      run.cached = position / block_tokens * kept_tokens + place % kept_tokens;
      std::int64_t& count = counts[static_cast<std::size_t>(run.keeper)];
      run.at = run.is_everywhere ? static_cast<std::int64_t>(rows_everywhere_.size()) : count;
      if (run.is_everywhere) {
        rows_everywhere_.push_back(global);
      } else {
        count += run.rows;
        for (std::int64_t own = 0; own < run.rows && run.keeper == share.rank; ++own) rows_.push_back(global + own);
      }
      row += run.rows;
      runs_.push_back(run);
    }
  }
  own_ = static_cast<std::int64_t>(rows_.size());
  most_own_ = *std::max_element(counts.begin(), counts.end());
  everywhere_ = static_cast<std::int64_t>(rows_everywhere_.size());
  rows_.insert(rows_.end(), rows_everywhere_.begin(), rows_everywhere_.end());
}

kernels::TokenPart ContextRows::token_part(int part) const {
  const int first = share_.rank * share_.parts_of_rank();
  return {.parts = share_.parts, .part = first + part, .first = first, .tokens = part_tokens_};
}

}  // namespace accord::engine
