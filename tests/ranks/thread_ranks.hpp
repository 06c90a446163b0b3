#pragma once
// Ranks as threads of the test: the quickest way to get several.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "accord/communicator.hpp"

namespace accord::testing {

/// Runs `body` as rank 0 .. size-1, each on its own thread with a communicator over a store in memory.
inline void run_thread_ranks(int size, const CommunicatorOptions& options,
                             const std::function<void(Communicator)>& body) {
  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Result<Communicator> communicator = Communicator::create(store, rank, size, options);
      ASSERT_TRUE(communicator.ok()) << "rank " << rank << ": " << communicator.status().to_string();
      body(std::move(*communicator));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace accord::testing
