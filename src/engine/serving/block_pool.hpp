#pragma once
// The bookkeeping of a paged KV cache: the holders of each block, and the blocks whose contents can be reused.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/generation.hpp"
#include "base/hash.hpp"

namespace accord::engine {

/// A block of the cache, from 0.
using BlockId = std::int32_t;
inline constexpr BlockId kNoBlock = -1;
/// Returns the parent of the first blocks of sequences with this adapter (0: without one). The same tokens have other
/// keys and values with another adapter.
constexpr BlockId root_of(std::int32_t adapter) { return kNoBlock - adapter; }

struct BlockPoolOptions {
  std::int32_t blocks = 0;
  std::int32_t block_tokens = 16;
};

/// Blocks with counted holders. A block without holders is free. If its content is published, it is kept until the
/// block is needed (least recently used first), and can be found and held again by the tokens up to its end.
///
/// A value: no threads, and no allocation after create(). The same calls always return the same blocks.
/// REQUIRES: every holder releases the blocks of its sequence last block first. A kept block is therefore always reused
/// before the one that precedes it, and a published block's id identifies all tokens up to its end.
class BlockPool {
 public:
  using Hash = std::uint64_t (*)(std::span<const std::byte>);

  /// Fails with kInvalidArgument if there are no blocks, no tokens in them, or more than 2^31 tokens in total. `hash`:
  /// for tests of collisions.
  static Result<BlockPool> create(const BlockPoolOptions& options, Hash hash = xxh3);

  std::int32_t blocks() const { return static_cast<std::int32_t>(blocks_.size()); }
  std::int32_t block_tokens() const { return block_tokens_; }
  /// Returns the number of blocks that `tokens` tokens fill or begin.
  std::int32_t blocks_for(std::int64_t tokens) const {
    return static_cast<std::int32_t>((tokens + block_tokens_ - 1) / block_tokens_);
  }
  /// Blocks without holders.
  std::int32_t available() const { return free_.length + kept_.length; }
  /// The available blocks whose content can be found.
  std::int32_t kept() const { return kept_.length; }
  std::int32_t holders(BlockId block) const { return at(block).holders; }

  /// Returns a block with unspecified content, held once, or kNoBlock if none is available.
  BlockId allocate();
  /// Adds a holder. The block may be a kept one.
  void hold(BlockId block);
  /// Removes a holder.
  void release(BlockId block);

  /// Sets `found` to the published blocks of the first tokens after `root`, as far as they match. Full blocks only;
  /// does not hold them.
  void find(BlockId root, std::span<const TokenId> tokens, std::vector<BlockId>& found) const;
  /// Publishes `block`, which the caller holds and which is full of `tokens` after `parent` (published, or root_of()
  /// for the first): find() can find it from then on. If another block already has that content, the caller's hold
  /// moves to that block. Returns the block that is held afterwards.
  BlockId publish(BlockId block, BlockId parent, std::span<const TokenId> tokens);

  /// Unpublishes all blocks, so that none can be found by its tokens. REQUIRES: no block is held.
  void unpublish_all();

  /// Checks all invariants. Returns kInternal, saying what is wrong.
  Status check() const;

 private:
  struct Block {
    std::int32_t holders = 0;
    BlockId previous = kNoBlock;  // in the list of free or kept blocks
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
  std::vector<BlockId> buckets_;  // by chain hash; the size is a power of two
  List free_;
  List kept_;  // least recently used first
};

}  // namespace accord::engine
