// From calls to streams. A group collects its thread's calls. Those on one communicator go as one batch into the
// stream of the first of them, which waits for their other streams, as those wait for it. Batches of one communicator
// run in order, also across streams, unless they are in different captures. A batch posts all of its operations and
// then waits for them, so that they progress together.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/nccl_world.hpp"

namespace accord::testing::nccl {
namespace {

struct Entry {
  std::shared_ptr<ncclComm> comm;
  Operation operation;
  cudaStream_t stream;
};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Entry> entries;
  std::vector<std::pair<std::shared_ptr<ncclComm>, PointRef>> waits;
  std::vector<std::shared_ptr<ncclComm>> aborted;
};
thread_local Group group;

void run(const std::shared_ptr<ncclComm>& comm, const std::vector<Operation>& operations) {
  std::vector<PointRef> done;
  {
    const std::lock_guard lock(World::instance().mutex);
    if (comm->stopped) return;
    for (const Operation& operation : operations) {
      done.push_back(HostRuntime::instance().make_point());
      comm->pending.insert(done.back());
      post({operation, comm.get(), done.back()});
    }
  }
  for (const PointRef& each : done) HostRuntime::instance().await(each);
}

Status launch_batch(const std::shared_ptr<ncclComm>& comm, std::vector<Operation> operations,
                    std::vector<cudaStream_t> streams) {
  HostRuntime& runtime = HostRuntime::instance();
  const Device device = comm->where();
  const Stream first{streams.front()};
  ACCORD_ASSIGN_OR_RETURN(const bool captured, runtime.is_capturing(device, first));
  comm->captured |= captured;
  std::sort(streams.begin(), streams.end());
  streams.erase(std::unique(streams.begin(), streams.end()), streams.end());
  std::erase(streams, first.handle);
  for (cudaStream_t const other : streams) {
    ACCORD_ASSIGN_OR_RETURN(const PointRef before, runtime.mark(device, Stream{other}));
    ACCORD_RETURN_IF_ERROR(runtime.follow(before, device, first));
  }
  if (comm->last != nullptr && comm->last_stream != first.handle && runtime.in_same_capture(comm->last, device, first))
    ACCORD_RETURN_IF_ERROR(runtime.follow(comm->last, device, first));
  ACCORD_RETURN_IF_ERROR(runtime.enqueue(device, first, [comm, batch = std::move(operations)] { run(comm, batch); }));
  ACCORD_ASSIGN_OR_RETURN(comm->last, runtime.mark(device, first));
  comm->last_stream = first.handle;
  for (cudaStream_t const other : streams) ACCORD_RETURN_IF_ERROR(runtime.follow(comm->last, device, Stream{other}));
  return {};
}

/// Launches one batch per communicator, in the order of their first calls.
ncclResult_t launch(std::vector<Entry> entries) {
  while (!entries.empty()) {
    const auto comm = entries.front().comm;
    const auto rest =
        std::stable_partition(entries.begin(), entries.end(), [&](const Entry& each) { return each.comm == comm; });
    std::vector<Operation> operations;
    std::vector<cudaStream_t> streams;
    for (auto each = entries.begin(); each != rest; ++each) {
      operations.push_back(each->operation);
      streams.push_back(each->stream);
    }
    entries.erase(entries.begin(), rest);
    const Status status = launch_batch(comm, std::move(operations), std::move(streams));
    if (!status.ok()) return fail(ncclUnhandledCudaError, status.message());
  }
  return ncclSuccess;
}

ncclResult_t end(const Group& ended) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  count_call("ncclGroupEnd", -1);
  std::map<ncclComm*, int> operations;
  for (const Entry& entry : ended.entries) ++operations[entry.comm.get()];
  for (const auto& [comm, count] : operations)
    world.log_call(comm->home_rank, fmt::format("ncclGroupEnd rank={} operations={}", comm->rank, count));
  const int rank = ended.entries.empty() ? -1 : ended.entries.front().comm->home_rank;
  if (const ncclResult_t failure = world.pop_failure("ncclGroupEnd", rank); failure != ncclSuccess) return failure;
  for (const Entry& entry : ended.entries) {
    const bool is_message = entry.operation.kind == Kind::kSend || entry.operation.kind == Kind::kReceive;
    const ncclResult_t connected = is_message ? ncclSuccess : connect_ranks(lock, entry.comm);
    if (connected != ncclSuccess && connected != ncclInProgress) return connected;
  }
  ncclResult_t result = launch(ended.entries);
  if (result == ncclSuccess && !ended.entries.empty() && !ended.entries.front().comm->options.blocking) {
    for (const Entry& entry : ended.entries) entry.comm->is_unpolled = true;
    ++world.started_threads;
    result = ncclInProgress;
  }
  for (const auto& [comm, done] : ended.waits) {
    const ncclResult_t each = conclude(lock, comm, done);
    lock.lock();
    if (result == ncclSuccess || result == ncclInProgress) result = each == ncclSuccess ? result : each;
  }
  for (const auto& comm : ended.aborted) free_aborted(lock, comm);
  return result;
}

}  // namespace

bool in_group() { return group.depth > 0; }

ncclResult_t fail_group(ncclResult_t result) {
  if (in_group() && group.error == ncclSuccess) group.error = result;
  return result;
}

void wait_at_group_end(const std::shared_ptr<ncclComm>& comm, const PointRef& done) {
  group.waits.emplace_back(comm, done);
}

void free_at_group_end(const std::shared_ptr<ncclComm>& comm) { group.aborted.push_back(comm); }

ncclResult_t start(const std::shared_ptr<ncclComm>& comm, const Operation& operation, cudaStream_t stream) {
  if (!in_group()) return launch({{comm, operation, stream}});
  group.entries.push_back({comm, operation, stream});
  return ncclSuccess;
}

extern "C" {

ncclResult_t ncclGroupStart() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  count_call("ncclGroupStart", -1);
  if (const ncclResult_t failure = world.pop_failure("ncclGroupStart", -1); failure != ncclSuccess) return failure;
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (!in_group()) return fail(ncclInvalidUsage, "ncclGroupEnd: without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  return ended.error == ncclSuccess ? end(ended) : ended.error;
}

}  // extern "C"

}  // namespace accord::testing::nccl
