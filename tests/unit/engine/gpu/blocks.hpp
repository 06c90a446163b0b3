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

}  // namespace accord::testing
