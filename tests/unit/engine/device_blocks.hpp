#pragma once
// A kernel by itself, in blocks of any size.

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "device/host_block.hpp"

namespace accord::testing {

struct BlockSize {
  int threads = 1, lanes = 1;
};

/// Runs `blocks` blocks of a kernel, one after the other.
template <typename K>
void run_blocks(const K& kernel, int blocks, const BlockSize& size, std::size_t shared_bytes) {
  HostTeam team(size.threads);
  std::vector<std::unique_ptr<HostTeam>> warps;
  for (int i = 0; i < size.threads; i += size.lanes) warps.push_back(std::make_unique<HostTeam>(size.lanes));
  std::vector<device::Words> shared(shared_bytes / sizeof(device::Words) + 1);
  std::memset(shared.data(), 0xFF, shared.size() * sizeof(device::Words));  // NaN
  const auto run = [&](int thread) {
    for (int block = 0; block < blocks; ++block) {
      HostBlock one({thread, size.threads, block, blocks, size.lanes}, team,
                    *warps[static_cast<std::size_t>(thread / size.lanes)], reinterpret_cast<std::byte*>(shared.data()));
      kernel(one);
      team.meet();
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < size.threads; ++thread) threads.emplace_back(run, thread);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace accord::testing
