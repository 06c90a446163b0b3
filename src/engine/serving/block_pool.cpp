// A published block is found by a hash over all tokens up to its end. Then its own tokens and the block before it are
// compared. The preceding block identifies all earlier tokens, because it cannot be reused while a block that follows
// it is published: every holder of a block also holds the blocks before it, and releases them later. Hash collisions
// therefore cannot mix two sequences.
#include "engine/serving/block_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace accord::engine {

Result<BlockPool> BlockPool::create(const BlockPoolOptions& options, Hash hash) {
  if (options.blocks < 1 || options.block_tokens < 1 ||
      std::int64_t{options.blocks} * options.block_tokens > std::numeric_limits<std::int32_t>::max())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a cache of {} blocks of {} tokens; expected at least one of each, and less than 2^31 "
                              "tokens in total",
                              options.blocks, options.block_tokens));
  BlockPool pool;
  pool.block_tokens_ = options.block_tokens;
  pool.hash_ = hash;
  pool.blocks_.resize(static_cast<std::size_t>(options.blocks));
  pool.tokens_.resize(pool.blocks_.size() * static_cast<std::size_t>(options.block_tokens));
  pool.buckets_.assign(std::bit_ceil(pool.blocks_.size()), kNoBlock);
  for (BlockId block = 0; block < options.blocks; ++block) pool.append(pool.free_, block);
  return pool;
}

std::span<const TokenId> BlockPool::tokens_of(BlockId block) const {
  const auto length = static_cast<std::size_t>(block_tokens_);
  return std::span(tokens_).subspan(static_cast<std::size_t>(block) * length, length);
}

void BlockPool::append(List& list, BlockId block) {
  at(block).previous = list.last;
  at(block).next = kNoBlock;
  if (list.last != kNoBlock) at(list.last).next = block;
  if (list.first == kNoBlock) list.first = block;
  list.last = block;
  ++list.length;
}

void BlockPool::remove(List& list, BlockId block) {
  const Block& entry = at(block);
  (entry.previous == kNoBlock ? list.first : at(entry.previous).next) = entry.next;
  (entry.next == kNoBlock ? list.last : at(entry.next).previous) = entry.previous;
  --list.length;
}

std::uint64_t BlockPool::chain_hash(BlockId parent, std::span<const TokenId> tokens) const {
  const std::array<std::uint64_t, 2> link = {
      parent < 0 ? static_cast<std::uint64_t>(kNoBlock - parent) : at(parent).chain, hash_(std::as_bytes(tokens))};
  return hash_(std::as_bytes(std::span(link)));
}

BlockId BlockPool::look_up(BlockId parent, std::span<const TokenId> tokens) const {
  const std::uint64_t chain = chain_hash(parent, tokens);
  BlockId block = buckets_[chain & (buckets_.size() - 1)];
  while (block != kNoBlock) {
    const Block& entry = at(block);
    if (entry.chain == chain && entry.parent == parent && std::ranges::equal(tokens_of(block), tokens)) break;
    block = entry.next_in_bucket;
  }
  return block;
}

void BlockPool::unpublish(BlockId block) {
  Block& entry = at(block);
  BlockId* link = &buckets_[entry.chain & (buckets_.size() - 1)];
  while (*link != block) link = &at(*link).next_in_bucket;
  *link = entry.next_in_bucket;
  entry.published = false;
}

BlockId BlockPool::allocate() {
  List& list = free_.length > 0 ? free_ : kept_;
  const BlockId block = list.first;
  if (block == kNoBlock) return kNoBlock;
  remove(list, block);
  if (at(block).published) unpublish(block);
  at(block).holders = 1;
  return block;
}

void BlockPool::hold(BlockId block) {
  if (at(block).holders++ == 0) remove(at(block).published ? kept_ : free_, block);
}

void BlockPool::release(BlockId block) {
  if (--at(block).holders == 0) append(at(block).published ? kept_ : free_, block);
}

void BlockPool::find(BlockId root, std::span<const TokenId> tokens, std::vector<BlockId>& found) const {
  found.clear();
  const auto length = static_cast<std::size_t>(block_tokens_);
  BlockId parent = root;
  for (std::size_t first = 0; first + length <= tokens.size(); first += length) {
    parent = look_up(parent, tokens.subspan(first, length));
    if (parent == kNoBlock) return;
    found.push_back(parent);
  }
}

BlockId BlockPool::publish(BlockId block, BlockId parent, std::span<const TokenId> tokens) {
  const BlockId known = look_up(parent, tokens);
  if (known != kNoBlock) {
    if (known == block) return block;
    hold(known);
    release(block);
    return known;
  }
  Block& entry = at(block);
  entry.parent = parent;
  entry.chain = chain_hash(parent, tokens);
  entry.published = true;
  BlockId& bucket = buckets_[entry.chain & (buckets_.size() - 1)];
  entry.next_in_bucket = bucket;
  bucket = block;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(block) * block_tokens_);
  return block;
}

void BlockPool::unpublish_all() {
  while (kept_.length > 0) {
    const BlockId block = kept_.first;
    remove(kept_, block);
    unpublish(block);
    append(free_, block);
  }
}

Status BlockPool::check() const {
  const auto block_error = [](BlockId block, const char* what) {
    return Status(StatusCode::kInternal, fmt::format("block {} of the cache {}", block, what));
  };
  std::vector<int> lists(blocks_.size(), 0);
  std::vector<std::int32_t> place(blocks_.size(), 0);  // position in the lists of available blocks, from 1
  std::int32_t listed = 0;
  for (const List* list : {&free_, &kept_}) {
    for (BlockId block = list->first; block != kNoBlock; block = at(block).next) {
      if (++lists[static_cast<std::size_t>(block)] > 1) return block_error(block, "is in two lists");
      if (at(block).published != (list == &kept_)) return block_error(block, "is in the wrong list");
      place[static_cast<std::size_t>(block)] = ++listed;
    }
  }
  if (listed != available()) return block_error(listed, "is missing from the lists of available blocks");
  for (BlockId block = 0; block < blocks(); ++block) {
    const Block& entry = at(block);
    if (entry.holders < 0) return block_error(block, "was released too often");
    if ((entry.holders == 0) != (lists[static_cast<std::size_t>(block)] == 1))
      return block_error(block, "is both held and free, or neither");
    if (!entry.published) continue;
    if (look_up(entry.parent, tokens_of(block)) != block) return block_error(block, "cannot be found by its tokens");
    if (entry.parent < 0) continue;
    const Block& parent = at(entry.parent);
    if (!parent.published) return block_error(block, "follows a block that is not published");
    if (parent.holders < entry.holders)
      return block_error(block, "has a holder that does not hold the block before it");
    if (parent.holders == 0 && place[static_cast<std::size_t>(entry.parent)] < place[static_cast<std::size_t>(block)])
      return block_error(block, "would be kept longer than the block before it");
  }
  return Status();
}

}  // namespace accord::engine
