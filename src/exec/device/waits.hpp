#pragma once
// How threads of kernels wait for each other.

#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"
#include "exec/device/program.hpp"

namespace accord::exec {

ACCORD_ON_DEVICE inline std::uint64_t* word(std::byte* at) { return reinterpret_cast<std::uint64_t*>(at); }

/// Waits for ready(), which is called at least once. Returns false if it is not ready and `ends` is set or the word
/// at `ending` has become nonzero: all waits end.
template <typename Block, typename Ready>
ACCORD_ON_DEVICE bool await(Block& block, const std::uint64_t* ending, bool ends, Ready ready) {
  for (unsigned polls = 1; !ready(); ++polls) {
    if (ends) return false;
    if (polls % 128 == 0) ends = block.load(ending) != 0;
    if (polls > 64) block.pause();
  }
  return true;
}

/// Called once in a kernel: all blocks of this rank meet, so that each sees the others' writes. Returns false, to all
/// threads of a block, if the waits of one have been ended; `ends` says whether earlier ones were. The rank's later
/// plans then end too.
template <typename Block>
ACCORD_ON_DEVICE bool sync_blocks(Block& block, const DeviceExecution& run, bool ends) {
  std::uint64_t* const so_far = word(run.memory + run.layout.block_barriers());
  const std::uint64_t meeting = block.load(so_far) + 1;
  // A block whose waits have ended does not join, so that no other block continues without the data that it has not
  // written.
  if (block.any(ends)) return false;
  if (block.thread() == 0) block.store_release(word(run.memory + run.layout.block_barrier(block.block())), meeting);
  for (int b = block.thread(); b < block.blocks() && !ends; b += block.threads()) {
    const std::uint64_t* const its = word(run.memory + run.layout.block_barrier(b));
    ends = !await(block, run.ending, ends, [&] { return block.load_acquire(its) >= meeting; });
  }
  if (block.any(ends)) {
    if (block.thread() == 0) block.store(word(run.memory + run.layout.failed()), 1);
    return false;
  }
  if (block.block() == 0 && block.thread() == 0) block.store(so_far, meeting);
  return true;
}

}  // namespace accord::exec
