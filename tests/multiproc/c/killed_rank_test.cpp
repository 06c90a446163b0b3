// A C program whose peer is killed: the call returns ACCORD_PEER_LOST, and the last error names the rank.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "accord/accord.h"
#include "ranks/process_ranks.hpp"

namespace accord {
namespace {

using testing::ProcessRanks;
using testing::TemporaryDirectory;

constexpr int kRanks = 3;
constexpr Rank kVictim = 1;

// Exit codes of the children: the outcome that they saw.
enum Seen : int { kNamedTheDead = 10, kOther = 11, kNoGroup = 13 };

/// Returns whether the status is ACCORD_PEER_LOST and the last error names the victim, in its text and as the only
/// rank at fault.
bool names_the_victim(accord_status_t status) {
  size_t count = 0;
  const int32_t* ranks = accord_last_error_ranks(&count);
  const bool named = status == ACCORD_PEER_LOST && count == 1 && ranks[0] == kVictim &&
                     std::strstr(accord_last_error(), "rank 1") != nullptr;
  if (!named) std::fprintf(stderr, "%s: %s\n", accord_status_name(status), accord_last_error());
  return named;
}

int rank_body(const std::string& directory, Rank rank, std::atomic<int>& ready) {
  accord_store_t* store = nullptr;
  accord_communicator_t* comm = nullptr;
  accord_communicator_options_t options = ACCORD_COMMUNICATOR_OPTIONS_INIT;
  options.timeout_ns = 30000000000;
  if (accord_file_store_create(directory.c_str(), &store) != ACCORD_OK) return kNoGroup;
  if (accord_communicator_create(store, rank, kRanks, &options, &comm) != ACCORD_OK) return kNoGroup;
  ++ready;
  if (rank == kVictim) pause();  // never calls

  float value = 1;
  accord_work_t* work = nullptr;
  accord_call_t call = ACCORD_CALL_INIT;
  call.kind = ACCORD_CALL_BARRIER;
  bool named = names_the_victim(accord_all_reduce(comm, &value, &value, 1, ACCORD_FLOAT32, ACCORD_SUM, nullptr));
  named = accord_start(comm, &call, nullptr, &work) == ACCORD_OK && names_the_victim(accord_work_wait(work)) && named;
  named = names_the_victim(accord_communicator_status(comm)) && named;
  accord_communicator_free(comm);
  accord_work_free(work);
  accord_store_free(store);
  return named ? kNamedTheDead : kOther;
}

TEST(KilledRankInC, is_named_by_the_last_error_of_the_survivors) {
  const TemporaryDirectory directory;
  void* const shared = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& ready = *new (shared) std::atomic<int>(0);
  ProcessRanks ranks(kRanks, [&](Rank rank) { return rank_body(directory.path(), rank, ready); });
  const Deadline deadline = Deadline::in(std::chrono::seconds(30));
  while (ready.load() < kRanks && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(ready.load(), kRanks);
  ranks.kill(kVictim, SIGKILL);
  EXPECT_EQ(ranks.wait_all(Deadline::in(std::chrono::seconds(20))),
            (std::vector<int>{kNamedTheDead, 128 + SIGKILL, kNamedTheDead}));
  munmap(shared, 4096);
}

}  // namespace
}  // namespace accord
