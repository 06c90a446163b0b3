#pragma once
// The bookkeeping of a paged KV cache: who holds which block, and which blocks' contents can be used again.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/generation.hpp"
#include "base/hash.hpp"

namespace accord::engine {

/// A block of the cache, from 0.
using BlockId = std::int32_t;
inline constexpr BlockId kNoBlock = -1;

struct BlockPoolOptions {
  std::int32_t blocks = 0;
  std::int32_t block_tokens = 16;
};

/// Blocks with counted holders. A block that nobody holds is free; one whose content is published is kept until it is
/// needed, the least recently used first, and can be found and held again by the tokens that led to it.
///
/// A value: no threads, and no allocation after create(). What is freed and given is the same for the same calls.
/// REQUIRES, of every caller: a block's holders release it last block of the sequence first. So a kept block is always
/// given away before the one that leads to it, and a published block's id stands for all tokens up to its end.
class BlockPool {
 public:
  using Hash = std::uint64_t (*)(std::span<const std::byte>);

  /// kInvalidArgument: no blocks, or no tokens in them, or more than 2^31 tokens in all. `hash`: for tests of
  /// collisions.
  static Result<BlockPool> create(const BlockPoolOptions& options, Hash hash = xxh3);

  std::int32_t blocks() const { return static_cast<std::int32_t>(blocks_.size()); }
  std::int32_t block_tokens() const { return block_tokens_; }
  /// Blocks that `tokens` tokens fill or begin.
  std::int32_t blocks_for(std::int64_t tokens) const {
    return static_cast<std::int32_t>((tokens + block_tokens_ - 1) / block_tokens_);
  }
  /// Blocks that nobody holds, and how many of these have a content that can be found.
  std::int32_t available() const { return free_.length + kept_.length; }
  std::int32_t kept() const { return kept_.length; }
  std::int32_t holders(BlockId block) const { return at(block).holders; }

  /// A block with unknown content, held once; kNoBlock if none is available.
  BlockId allocate();
  /// One holder more, also of a kept block.
  void hold(BlockId block);
  /// One holder less.
  void release(BlockId block);

  /// Puts the published blocks of the first tokens into `found`, as far as they go: full blocks only, not held by this.
  void find(std::span<const TokenId> tokens, std::vector<BlockId>& found) const;
  /// `block`, which the caller holds, is full of `tokens` after `parent` (published, or kNoBlock for the first): it can
  /// be found from now on. If another block has that content already, the caller's hold moves to that one. Gives the
  /// block now held.
  BlockId publish(BlockId block, BlockId parent, std::span<const TokenId> tokens);

  /// No block can be found by its tokens any more. REQUIRES: nobody holds any.
  void forget();

  /// Looks through everything for contradictions; kInternal says what is wrong.
  Status check() const;

 private:
  struct Block {
    std::int32_t holders = 0;
    BlockId previous = kNoBlock;  // in the list of free or of kept blocks
    BlockId next = kNoBlock;
    BlockId next_in_bucket = kNoBlock;
    BlockId parent = kNoBlock;
    bool published = false;
    std::uint64_t chain = 0;  // hash of all tokens up to the block's end
  };
  struct List {
    BlockId first = kNoBlock;
    BlockId last = kNoBlock;
    std::int32_t length = 0;
  };

  BlockPool() = default;
  Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(BlockId block) const { return blocks_[static_cast<std::size_t>(block)]; }
  std::span<const TokenId> tokens_of(BlockId block) const;
  void append(List& list, BlockId block);
  void remove(List& list, BlockId block);
  std::uint64_t chain_hash(BlockId parent, std::span<const TokenId> tokens) const;
  BlockId look_up(BlockId parent, std::span<const TokenId> tokens) const;
  void unpublish(BlockId block);

  std::int32_t block_tokens_ = 0;
  Hash hash_ = nullptr;
  std::vector<Block> blocks_;
  std::vector<TokenId> tokens_;   // of published blocks
  std::vector<BlockId> buckets_;  // by chain hash; a power of two
  List free_;
  List kept_;  // the least recently used first
};

}  // namespace accord::engine
