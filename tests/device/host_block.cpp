// Each thread of the host goes through all blocks of a run.
#include "device/host_block.hpp"

#include <deque>
#include <optional>
#include <thread>

namespace accord::testing {

void run_blocks(const HostBlocks& blocks) {
  std::optional<HostTurns> turns;
  if (kTakeTurns) turns.emplace(blocks.threads, blocks.lanes);
  HostTurns* const of_block = turns ? &*turns : nullptr;
  HostTeam team(blocks.threads, 0, of_block);
  std::deque<HostTeam> warps;
  for (int first = 0; first < blocks.threads; first += blocks.lanes) warps.emplace_back(blocks.lanes, first, of_block);
  std::vector<device::Words> shared(blocks.shared_bytes / sizeof(device::Words) + 1);
  std::memset(shared.data(), 0xFF, shared.size() * sizeof(device::Words));
  const auto run = [&](int thread) {
    for (int block = blocks.first; block < blocks.last; ++block) {
      HostBlock one({.thread = thread,
                     .threads = blocks.threads,
                     .block = block,
                     .blocks = blocks.blocks,
                     .lanes = blocks.lanes,
                     .may_wait = blocks.may_wait},
                    team, warps[static_cast<std::size_t>(thread / blocks.lanes)],
                    reinterpret_cast<std::byte*>(shared.data()));
      blocks.code(blocks.arguments, one);
      team.sync(thread);  // the next block uses the same shared memory
    }
  };
  if (turns) return turns->run(run);
  std::vector<std::thread> threads;
  for (int thread = 1; thread < blocks.threads; ++thread) threads.emplace_back(run, thread);
  run(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace accord::testing
