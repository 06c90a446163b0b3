// A progress thread that cannot be had now may be had later; each case in a child, as a process makes one only once.
#include "comm/progress.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ranks/process_ranks.hpp"

namespace accord::comm {
namespace {

using testing::ProcessRanks;

/// Lets this process open `more` descriptors from now on.
bool allow_descriptors(int more) {
  const int next = dup(STDIN_FILENO);
  close(next);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(next + more);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

TEST(Progress, without_descriptors_it_is_an_error_and_with_them_it_works) {
  ProcessRanks child(1, [](Rank) {
    for (const int more : {0, 1}) {  // neither is enough: it takes an epoll and an eventfd
      if (!allow_descriptors(more)) return 1;
      const Result<ProgressThread*> none = ProgressThread::start();
      if (none.status().code() != StatusCode::kResourceExhausted) return 2;
    }
    if (!allow_descriptors(64)) return 3;
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(20);
    Result<Communicator> solo = Communicator::create(make_memory_store(), 0, 1, options);
    if (!solo.ok()) return 4;
    return solo->barrier_async().wait().ok() ? 0 : 5;
  });
  EXPECT_EQ(child.wait(0, Deadline::in(std::chrono::seconds(30))), 0);
}

}  // namespace
}  // namespace accord::comm
