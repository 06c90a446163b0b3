// The blocks of a paged cache: their holders, and whose contents are found again.
#include "engine/serving/block_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::uint64_t one_for_all(std::span<const std::byte> /*bytes*/) { return 7; }

BlockPool pool_of(std::int32_t blocks, std::int32_t block_tokens, BlockPool::Hash hash = xxh3) {
  return BlockPool::create({blocks, block_tokens}, hash).value();
}

std::vector<BlockId> find(const BlockPool& pool, const std::vector<TokenId>& tokens) {
  std::vector<BlockId> found;
  pool.find(kNoBlock, tokens, found);
  return found;
}

TEST(BlockPool, its_size_is_known_from_the_start_and_never_exceeded) {
  BlockPool pool = pool_of(3, 4);
  EXPECT_EQ(pool.available(), 3);
  EXPECT_THAT((std::vector{pool.allocate(), pool.allocate(), pool.allocate(), pool.allocate()}),
              ElementsAre(0, 1, 2, kNoBlock));
  pool.release(1);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.blocks_for(0), 0);
  EXPECT_EQ(pool.blocks_for(4), 1);
  EXPECT_EQ(pool.blocks_for(5), 2);
}

TEST(BlockPool, invalid_sizes_are_rejected) {
  for (const BlockPoolOptions& options :
       {BlockPoolOptions{0, 16}, BlockPoolOptions{4, 0}, BlockPoolOptions{-1, 16}, BlockPoolOptions{1 << 30, 16}}) {
    const auto pool = BlockPool::create(options);
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(pool.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(pool.status().message(), HasSubstr("2^31"));
  }
}

TEST(BlockPool, equal_tokens_with_another_adapter_are_other_blocks) {
  for (const BlockPool::Hash hash : {BlockPool::Hash(xxh3), BlockPool::Hash(one_for_all)}) {
    BlockPool pool = pool_of(8, 2, hash);
    const std::vector<TokenId> tokens = {1, 2};
    const BlockId plain = pool.allocate(), adapted = pool.allocate();
    EXPECT_EQ(pool.publish(plain, root_of(0), tokens), plain);
    EXPECT_EQ(pool.publish(adapted, root_of(2), tokens), adapted);
    std::vector<BlockId> found;
    for (const auto& [adapter, block] : {std::pair(0, plain), std::pair(2, adapted)}) {
      pool.find(root_of(adapter), tokens, found);
      EXPECT_THAT(found, ElementsAre(block));
    }
    pool.find(root_of(1), tokens, found);
    EXPECT_THAT(found, IsEmpty());
    EXPECT_TRUE(pool.check().ok());
  }
}

TEST(BlockPool, full_blocks_are_found_by_all_tokens_up_to_their_end) {
  BlockPool pool = pool_of(8, 2);
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};
  const BlockId first = pool.allocate();
  const BlockId second = pool.allocate();
  pool.publish(first, kNoBlock, std::span(tokens).subspan(0, 2));
  pool.publish(second, first, std::span(tokens).subspan(2, 2));
  EXPECT_THAT(find(pool, tokens), ElementsAre(first, second));
  EXPECT_THAT(find(pool, {1, 2, 3}), ElementsAre(first));
  EXPECT_THAT(find(pool, {1, 2, 4, 3}), ElementsAre(first));
  EXPECT_THAT(find(pool, {3, 4}), IsEmpty());  // the second block's tokens, but after different ones
  EXPECT_THAT(find(pool, {1}), IsEmpty());
}

TEST(BlockPool, released_blocks_are_cached_and_the_oldest_is_reused_first) {
  BlockPool pool = pool_of(4, 1);
  const std::vector<TokenId> tokens = {1, 2, 3};
  std::vector<BlockId> blocks;
  for (const TokenId token : tokens) {
    blocks.push_back(pool.allocate());
    pool.publish(blocks.back(), kNoBlock, std::span(&token, 1));
  }
  for (const BlockId block : {blocks[1], blocks[0], blocks[2]}) pool.release(block);
  EXPECT_EQ(pool.available(), 4);
  EXPECT_EQ(pool.kept(), 3);
  EXPECT_EQ(pool.allocate(), 3);  // without content, so it is taken first
  pool.hold(blocks[1]);           // used again
  pool.release(blocks[1]);
  EXPECT_EQ(pool.allocate(), blocks[0]);
  EXPECT_THAT(find(pool, {1}), IsEmpty());
  EXPECT_THAT(find(pool, {2}), ElementsAre(blocks[1]));
  EXPECT_EQ(pool.allocate(), blocks[2]);
  EXPECT_EQ(pool.allocate(), blocks[1]);
  EXPECT_EQ(pool.allocate(), kNoBlock);
}

TEST(BlockPool, the_first_of_two_blocks_with_equal_content_is_kept) {
  BlockPool pool = pool_of(4, 2);
  const std::vector<TokenId> tokens = {5, 6};
  const BlockId first = pool.allocate();
  const BlockId second = pool.allocate();
  EXPECT_EQ(pool.publish(first, kNoBlock, tokens), first);
  EXPECT_EQ(pool.publish(second, kNoBlock, tokens), first);
  EXPECT_EQ(pool.holders(first), 2);
  EXPECT_EQ(pool.holders(second), 0);
  EXPECT_EQ(pool.publish(first, kNoBlock, tokens), first);
  EXPECT_EQ(pool.holders(first), 2);
}

// Sequences of few different tokens arrive, grow and leave. The contents that the pool reports for a block are
// compared with the stored contents.
void run_random_sequences(BlockPool::Hash hash, std::uint32_t seed) {
  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<BlockId> table;
  };
  constexpr std::int32_t kLength = 3;
  std::mt19937 random(seed);
  BlockPool pool = pool_of(24, kLength, hash);
  std::vector<std::vector<TokenId>> contents(24);  // by block: all tokens up to its end
  std::vector<Sequence> sequences;
  std::vector<BlockId> found;
  std::size_t reused = 0;
  const auto release = [&](std::size_t index) {
    for (auto block = sequences[index].table.rbegin(); block != sequences[index].table.rend(); ++block)
      pool.release(*block);
    sequences.erase(sequences.begin() + static_cast<std::ptrdiff_t>(index));
  };
  for (int round = 0; round < 3000; ++round) {
    Sequence sequence;
    const std::size_t length = kLength * (1 + random() % 5);
    for (std::size_t i = 0; i < length; ++i) sequence.tokens.push_back(static_cast<TokenId>(random() % 2));
    pool.find(kNoBlock, sequence.tokens, found);
    for (std::size_t i = 0; i < found.size(); ++i) {
      pool.hold(found[i]);
      sequence.table.push_back(found[i]);
      const auto end = sequence.tokens.begin() + static_cast<std::ptrdiff_t>(i + 1) * kLength;
      ASSERT_EQ(contents[static_cast<std::size_t>(found[i])], std::vector<TokenId>(sequence.tokens.begin(), end));
      ++reused;
    }
    while (sequence.table.size() * kLength < length) {
      const BlockId block = pool.allocate();
      if (block == kNoBlock) break;
      const auto index = static_cast<std::ptrdiff_t>(sequence.table.size());
      const auto begin = sequence.tokens.begin();
      contents[static_cast<std::size_t>(block)] = {begin, begin + (index + 1) * kLength};
      const BlockId parent = index == 0 ? kNoBlock : sequence.table.back();
      sequence.table.push_back(pool.publish(
          block, parent, std::span(sequence.tokens).subspan(static_cast<std::size_t>(index) * kLength, kLength)));
    }
    sequences.push_back(std::move(sequence));
    const Status status = pool.check();
    ASSERT_TRUE(status.ok()) << status.to_string();
    while (sequences.size() > 6 || (!sequences.empty() && pool.available() < 6)) release(random() % sequences.size());
  }
  while (!sequences.empty()) release(0);
  EXPECT_EQ(pool.available(), 24);
  EXPECT_GT(reused, 2000U);
}

TEST(BlockPool, random_sequences_find_only_their_own_blocks) { run_random_sequences(xxh3, 1); }

TEST(BlockPool, sequences_do_not_mix_when_all_hashes_collide) { run_random_sequences(one_for_all, 2); }

}  // namespace
}  // namespace accord::engine
