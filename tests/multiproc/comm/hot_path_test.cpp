// A prepared call allocates no memory and makes no system call: allocations are counted, and a seccomp filter forbids
// system calls.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <vector>

#include "counted_allocations.hpp"
#include "ranks/process_ranks.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using testing::ProcessRanks;

enum Ended : int { kDone = 0, kFailed = 1, kAllocated = 2 };

/// From here on, any system call except exit_group kills this process by SIGSYS.
void forbid_system_calls() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const sock_fprog filter = {static_cast<unsigned short>(std::size(program)), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    _exit(kFailed);
}

/// `prepared`: a call on `comm`.
int calls(Communicator& comm, Prepared& prepared, int times) {
  float values[4] = {1, 2, 3, 4}, out[4];
  const Buffer in_place{values, 4, DType::kFloat32};
  for (int i = 0; i < times; ++i) {
    if (!prepared.run().ok() || !comm.all_reduce(in_place, ReduceOp::kSum).ok() || !comm.barrier().ok() ||
        !comm.broadcast(in_place, 0).ok() || !comm.all_gather(ConstBuffer(in_place), {out, 4, DType::kFloat32}).ok())
      return kFailed;
  }
  return kDone;
}

TEST(HotPath, a_prepared_call_allocates_nothing_and_makes_no_system_call) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers allocate and call the system";
  ProcessRanks alone(1, [](Rank) -> int {
    Result<Communicator> comm = Communicator::create(make_memory_store(), 0, 1);
    if (!comm.ok()) return kFailed;
    float kept[4] = {1, 2, 3, 4};
    const Buffer buffer{kept, 4, DType::kFloat32};
    Result<Prepared> prepared = comm->prepare(Call::all_reduce(buffer, buffer, ReduceOp::kSum));
    // Fills the flight recorder's ring once.
    if (!prepared.ok() || calls(*comm, *prepared, 2000) != kDone) return kFailed;
    const std::size_t before = allocations;
    forbid_system_calls();
    if (calls(*comm, *prepared, 2000) != kDone) _exit(kFailed);
    _exit(allocations == before ? kDone : kAllocated);
  });
  EXPECT_EQ(alone.wait(0, Deadline::in(std::chrono::seconds(60))), kDone);
}

}  // namespace
}  // namespace accord
