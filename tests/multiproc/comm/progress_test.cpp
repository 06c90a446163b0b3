// A progress thread that cannot be created now may be created later, and it reports deaths whenever they happen. Each
// case runs in a child, because a process creates the thread only once.
#include "comm/progress.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/group.hpp"
#include "multiproc/transport/board.hpp"
#include "ranks/process_ranks.hpp"

namespace accord::comm {
namespace {

using testing::ProcessRanks;
using testing::TemporaryDirectory;

/// Lets this process open `more` more descriptors.
bool allow_descriptors(int more) {
  const int next = dup(STDIN_FILENO);
  close(next);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(next + more);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

TEST(Progress, without_descriptors_it_fails_and_with_them_it_works) {
  ProcessRanks child(1, [](Rank) {
    for (const int more : {0, 1}) {  // neither is enough: it needs an epoll and an eventfd
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

// Rank 1 dies when the second group is connected but not yet watched, and the first group has been notified.
TEST(Progress, a_peer_that_dies_while_a_second_group_is_created_is_lost_there_too) {
  const TemporaryDirectory directory;
  const transport::SharedBoard board = transport::make_board();
  const exec::WindowLayout layout(2, 4096);
  ProcessRanks ranks(2, [&](Rank rank) {
    Result<Communicator> first = Communicator::create(*make_file_store(directory.path()), rank, 2, {});
    transport::Member second;
    if (!first.ok() || !join_group(second, *board, rank, 2, layout.bytes()).ok()) return 1;
    if (rank == 1) _exit(0);
    if (first->barrier().code() != StatusCode::kPeerLost) return 2;
    const topology::Place place = topology::this_place().value();
    const std::shared_ptr<Group> group = Group::create(Membership{.rank = rank,
                                                                  .topology = topology::Topology({place, place}),
                                                                  .selector = plan::Selector::create("").value(),
                                                                  .layout = layout,
                                                                  .endpoint = std::move(second.endpoint),
                                                                  .links = std::move(second.links)},
                                                       {.name = "second", .timeout = std::chrono::seconds(30)})
                                             .value();
    const bool lost =
        transport::wait_until([&] { return !group->state().status().ok(); }, Deadline::in(std::chrono::seconds(5)));
    return lost && group->state().status().ranks() == std::vector<Rank>{1} ? 0 : 3;
  });
  EXPECT_EQ(ranks.wait_all(Deadline::in(std::chrono::seconds(60))), (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace accord::comm
