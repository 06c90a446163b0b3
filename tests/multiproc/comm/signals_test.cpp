// A program that blocks a signal in its own threads, to take it with sigwait(), gets it whatever threads accord has.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include "ranks/process_ranks.hpp"

namespace accord {
namespace {

using testing::ProcessRanks;

/// Blocks SIGTERM in this thread, as a program may do after it has begun to use accord, sends it to the process, and
/// returns whether sigwait() gets it. The process dies if another thread takes it.
bool receives_its_own_sigterm() {
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminate, nullptr);
  kill(getpid(), SIGTERM);
  int taken = 0;
  return sigwait(&terminate, &taken) == 0 && taken == SIGTERM;
}

TEST(Signals, the_progress_thread_leaves_signals_to_the_program) {
  ProcessRanks child(1, [](Rank) {
    Result<Communicator> solo = Communicator::create(make_memory_store(), 0, 1);
    if (!solo.ok() || !solo->barrier_async().wait().ok()) return 1;
    return receives_its_own_sigterm() ? 0 : 2;
  });
  EXPECT_EQ(child.wait(0, Deadline::in(std::chrono::seconds(20))), 0);
}

TEST(Signals, the_thread_of_a_hosted_store_leaves_signals_to_the_program) {
  ProcessRanks child(1, [](Rank) {
    const Result<std::shared_ptr<Store>> store =
        make_tcp_store(StoreRole::kHost, "127.0.0.1", 0, std::chrono::seconds(20));
    if (!store.ok()) return 1;
    return receives_its_own_sigterm() ? 0 : 2;
  });
  EXPECT_EQ(child.wait(0, Deadline::in(std::chrono::seconds(20))), 0);
}

}  // namespace
}  // namespace accord
