// How the rows of a run are divided among ranks that share the tokens of sequences.
#include "engine/program/context_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace accord::engine {
namespace {

using ::testing::ElementsAre;

struct Division {
  std::vector<std::int64_t> computed;         ///< by this rank, in the order of its tensors
  std::map<std::int64_t, std::int64_t> kept;  ///< token in the cache by row, for rows that this rank keeps
};

// Rows of two sequences: positions 10 to 69 (rows 0 to 59), and position 100 (row 60).
Division divide(Rank rank, int ranks, int parts, std::int64_t block_tokens, std::vector<std::int64_t> everywhere) {
  const std::vector<std::int32_t> blocks(10, 0);
  const std::vector<BatchRows> batch = {{0, {60, 10, blocks}}, {60, {1, 100, blocks}}};
  ContextRows rows;
  rows.divide({.rank = rank, .ranks = ranks, .parts = parts}, batch, everywhere, block_tokens);
  Division division{{rows.rows().begin(), rows.rows().end()}, {}};
  for (const ContextRun& run : rows.runs()) {
    if (run.keeper != rank) continue;
    const std::int64_t at = run.is_everywhere ? rows.own() + run.at : run.at;
    for (std::int64_t i = 0; i < run.rows; ++i)
      division.kept[division.computed.at(static_cast<std::size_t>(at + i))] = run.cached + i;
  }
  return division;
}

// Ten slow lines: the token at a position is kept by the rank of its place in the block.
TEST(ContextRows, every_row_is_computed_by_the_rank_that_keeps_its_token_or_by_all) {
  const std::vector<std::int64_t> everywhere = {0, 17, 59, 60};
  for (const auto& [ranks, parts, block_tokens] :
       {std::tuple{1, 4, 64}, {2, 2, 32}, {2, 4, 64}, {3, 3, 48}, {4, 4, 128}}) {
    const std::int64_t kept = block_tokens / ranks;
    for (Rank rank = 0; rank < ranks; ++rank) {
      const Division division = divide(rank, ranks, parts, block_tokens, everywhere);
      std::vector<std::int64_t> own;
      std::map<std::int64_t, std::int64_t> tokens;
      for (std::int64_t row = 0; row < 61; ++row) {
        const std::int64_t position = row == 60 ? 100 : 10 + row, place = position % block_tokens;
        if (place / kept != rank) continue;
        tokens[row] = position / block_tokens * kept + place % kept;
        if (std::find(everywhere.begin(), everywhere.end(), row) == everywhere.end()) own.push_back(row);
      }
      own.insert(own.end(), everywhere.begin(), everywhere.end());
      EXPECT_EQ(division.computed, own) << "rank " << rank << " of " << ranks;
      EXPECT_EQ(division.kept, tokens) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(ContextRows, all_ranks_agree_on_the_sizes_of_what_they_exchange) {
  const std::vector<std::int32_t> blocks(10, 0);
  const std::vector<BatchRows> batch = {{0, {40, 0, blocks}}};
  const std::vector<std::int64_t> everywhere = {39};
  std::vector<std::int64_t> own, most;
  for (Rank rank = 0; rank < 2; ++rank) {
    ContextRows rows;
    rows.divide({.rank = rank, .ranks = 2, .parts = 2}, batch, everywhere, 32);
    own.push_back(rows.own());
    most.push_back(rows.most_own());
    EXPECT_EQ(rows.everywhere(), 1);
    EXPECT_EQ(rows.token_part(0).part, rank);
    EXPECT_EQ(rows.token_part(0).tokens, 16);
  }
  EXPECT_THAT(own, ElementsAre(23, 16));  // 16 of the first block, 8 of the second without its last row; 16
  EXPECT_THAT(most, ElementsAre(23, 23));
}

TEST(ContextRows, a_rank_without_rows_of_its_own_has_those_of_all) {
  const std::vector<std::int32_t> blocks(10, 0);
  const std::vector<BatchRows> batch = {{0, {1, 5, blocks}}};
  const std::vector<std::int64_t> everywhere = {0};
  for (Rank rank = 0; rank < 2; ++rank) {
    ContextRows rows;
    rows.divide({.rank = rank, .ranks = 2, .parts = 2}, batch, everywhere, 32);
    EXPECT_THAT(rows.rows(), ElementsAre(0));
    EXPECT_EQ(rows.own(), 0);
    EXPECT_EQ(rows.most_own(), 0);
  }
}

}  // namespace
}  // namespace accord::engine
