#pragma once
// Runs a kernel by itself, in blocks of any size.

#include "device/host_block.hpp"

namespace accord::testing {

struct BlockSize {
  int threads = 1, lanes = 1;
};

/// Runs `blocks` blocks of a kernel, one after the other.
template <typename K>
void run_blocks(const K& kernel, int blocks, const BlockSize& size, std::size_t shared_bytes) {
  run_blocks({.code = run_on_host<K>,
              .arguments = &kernel,
              .threads = size.threads,
              .lanes = size.lanes,
              .last = blocks,
              .blocks = blocks,
              .shared_bytes = shared_bytes});
}

/// Does the same from the last block to the first.
template <typename K>
void run_blocks_backward(const K& kernel, int blocks, const BlockSize& size, std::size_t shared_bytes) {
  for (int block = blocks - 1; block >= 0; --block) {
    run_blocks({.code = run_on_host<K>,
                .arguments = &kernel,
                .threads = size.threads,
                .lanes = size.lanes,
                .first = block,
                .last = block + 1,
                .blocks = blocks,
                .shared_bytes = shared_bytes});
  }
}

/// Does the same with all blocks at the same time.
template <typename K>
void run_blocks_together(const K& kernel, int blocks, const BlockSize& size, std::size_t shared_bytes) {
  run_grid({K::kName, run_on_host<K>, size.threads, size.lanes}, &kernel,
           {.blocks = blocks, .threads = size.threads, .shared_bytes = shared_bytes, .together = true});
}

}  // namespace accord::testing
