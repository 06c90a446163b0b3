// How communicators are created and destroyed. A rank's communicator exists from the rank's call on, and is formed
// when the last rank has arrived; a child exists only from then on. As in NCCL, the caller's handle is written when
// the communicator is formed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "device/nccl_world.hpp"

namespace accord::testing::nccl {
namespace {

ncclResult_t initialise(std::string_view symbol, ncclComm_t* comm, int nranks, const ncclUniqueId& id, int rank,
                        const ncclConfig_t* config) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  Options options;
  const ncclResult_t options_result = read_options(config, {}, options);
  world.log_call(rank, fmt::format("{} rank={} nranks={}{}", symbol, rank, nranks, options.text));
  if (const ncclResult_t failure = world.pop_failure(symbol, rank); failure != ncclSuccess) return failure;
  if (options_result != ncclSuccess) return options_result;
  if (comm == nullptr || nranks < 1 || rank < 0 || rank >= nranks)
    return fail(ncclInvalidArgument, fmt::format("{}: rank {} does not exist among {} ranks", symbol, rank, nranks));
  const std::string key(id.internal, sizeof id.internal);
  const auto forming = world.forming.find(key);
  if (forming == world.forming.end())
    return fail(ncclInvalidUsage, fmt::format("{}: the id does not exist or has been used already", symbol));
  auto& [size, arrived] = forming->second;
  if (size != 0 && size != nranks)
    return fail(ncclInvalidArgument, fmt::format("{}: nranks is {}, but another rank passed {}", symbol, nranks, size));
  if (arrived.contains(rank))
    return fail(ncclInvalidUsage, fmt::format("{}: rank {} has already arrived", symbol, rank));

  const auto created = std::make_shared<ncclComm>(rank, HostRuntime::current_device(), options);
  created->rank = rank;
  created->size = nranks;
  world.live[created.get()] = created;
  count_call(symbol, rank);
  std::atomic_ref(*comm).store(created.get());  // other threads read it
  created->handle = comm;
  if (!world.pop_hang(symbol, rank)) {
    size = nranks;
    arrived[rank] = created;
    if (static_cast<int>(arrived.size()) == nranks) {
      std::vector<std::shared_ptr<ncclComm>> ranks;
      for (const auto& [number, each] : arrived) ranks.push_back(each);
      world.forming.erase(forming);
      form(ranks);
    }
  }
  return conclude(lock, created, created->formed);
}

std::shared_ptr<ncclComm> make_child(const ncclComm& parent, const Options& options, ncclComm_t* handle) {
  auto child = std::make_shared<ncclComm>(parent.home_rank, parent.device, options);
  child->handle = handle;
  *handle = nullptr;
  return child;
}

/// Forms one communicator for each color, of the visits that have a child.
void form_children(Arrivals& arrivals) {
  std::map<int, std::vector<const Arrival*>> by_color;
  for (const auto& [rank, arrival] : arrivals)
    if (arrival.child != nullptr) by_color[arrival.color].push_back(&arrival);
  for (auto& [color, members] : by_color) {
    std::stable_sort(members.begin(), members.end(),
                     [](const Arrival* a, const Arrival* b) { return a->key < b->key; });
    std::vector<std::shared_ptr<ncclComm>> ranks;
    for (const Arrival* const each : members) ranks.push_back(each->child);
    form(ranks);
  }
}

/// Waits until everything that the rank put into streams is done. Returns false if it was aborted or the runtime
/// ends.
bool drain(std::unique_lock<std::mutex>& lock, ncclComm& comm) {
  HostRuntime& runtime = HostRuntime::instance();
  while (!comm.aborted) {
    PointRef next = comm.formed;
    if (runtime.is_reached(next)) next = comm.last;
    if (runtime.is_reached(next) && !comm.pending.empty()) next = *comm.pending.begin();
    if (runtime.is_reached(next)) return true;
    lock.unlock();
    const bool reached = runtime.await(next);
    lock.lock();
    if (!reached) return false;
  }
  return false;
}

/// Removes the communicator from the library.
void remove_communicator(const std::shared_ptr<ncclComm>& comm) {
  comm->stopped = true;
  comm->last = nullptr;  // a capture keeps the communicator alive
  World::instance().live.erase(comm.get());
}

}  // namespace

void free_aborted(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm) {
  World& world = World::instance();
  if (comm->in_calls > 0) ++world.aborts_during_calls;
  await_streams(lock, comm);
  world.counts.registrations -= static_cast<int>(comm->registrations.size());
  world.counts.windows -= static_cast<int>(comm->windows.size());
  world.counts.redops -= static_cast<int>(comm->redops.size());
  remove_communicator(comm);
}

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.log_call(-1, "ncclGetUniqueId");
  if (const ncclResult_t failure = world.pop_failure("ncclGetUniqueId", -1); failure != ncclSuccess) return failure;
  if (id == nullptr) return fail(ncclInvalidArgument, "ncclGetUniqueId: null");
  *id = {};
  fmt::format_to_n(id->internal, sizeof id->internal, "accord test {}", world.next_id++);
  world.forming[std::string(id->internal, sizeof id->internal)] = {};
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return initialise("ncclCommInitRank", comm, nranks, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return initialise("ncclCommInitRankConfig", comm, nranks, id, rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  Options options;
  const auto parent = world.find(comm);
  const ncclResult_t options_result = read_options(config, parent == nullptr ? Options() : parent->options, options);
  ncclResult_t result = ncclSuccess;
  const std::string line = fmt::format(" color={} key={}{}", color, key, config == nullptr ? "" : options.text);
  if (begin("ncclCommSplit", comm, Needs::kReadiness, line, result) == nullptr) return result;
  if (options_result != ncclSuccess) return options_result;
  if (child == nullptr || color < NCCL_SPLIT_NOCOLOR)
    return fail(ncclInvalidArgument, "ncclCommSplit: color or newcomm is invalid");
  *child = nullptr;
  Arrival arrival{.comm = comm, .child = nullptr, .color = color, .key = key};
  if (color != NCCL_SPLIT_NOCOLOR) arrival.child = make_child(*parent, options, child);
  return rendezvous(lock, "Split", std::move(arrival), static_cast<std::size_t>(parent->size), form_children);
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child, ncclConfig_t* config,
                            int flags) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  Options options;
  const auto parent = world.find(comm);
  const ncclResult_t options_result = read_options(config, parent == nullptr ? Options() : parent->options, options);
  const std::set<int> excluded_ranks(excluded, excluded + (excluded == nullptr ? 0 : std::max(excluded_count, 0)));
  const std::string list = fmt::format("{}", fmt::join(excluded_ranks, ","));
  const bool aborts = flags == NCCL_SHRINK_ABORT;
  ncclResult_t result = ncclSuccess;
  const std::string line = fmt::format(" exclude={} flags={}{}", list, flags, config == nullptr ? "" : options.text);
  if (begin("ncclCommShrink", comm, aborts ? Needs::kExistence : Needs::kReadiness, line, result) == nullptr)
    return result;
  if (options_result != ncclSuccess) return options_result;
  if (child == nullptr || excluded_ranks.empty() || *excluded_ranks.begin() < 0 ||
      *excluded_ranks.rbegin() >= parent->size || excluded_ranks.contains(parent->rank) || parent->clique == nullptr ||
      (flags != NCCL_SHRINK_DEFAULT && !aborts))
    return fail(ncclInvalidArgument,
                fmt::format("ncclCommShrink: rank {} of {} without {}", parent->rank, parent->size, list));
  if (aborts) {
    parent->stopped = true;
    end_pending(*parent);
  }
  Arrival arrival{.comm = comm, .child = make_child(*parent, options, child)};
  const std::size_t remaining = static_cast<std::size_t>(parent->size) - excluded_ranks.size();
  return rendezvous(lock, "Shrink " + list, std::move(arrival), remaining, form_children);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclCommFinalize", comm, Needs::kReadiness, "", result);
  if (found == nullptr) return result;
  if (found->revoked) return fail(ncclInvalidUsage, "ncclCommFinalize: after ncclCommRevoke");
  if (found->finalized) return fail(ncclInvalidArgument, "ncclCommFinalize: called a second time");
  found->finalized = true;
  if (world.pop_hang("ncclCommFinalize", found->home_rank)) found->pending.insert(HostRuntime::instance().make_point());
  if (!found->options.blocking) return state_of(*found);
  return drain(lock, *found) ? ncclSuccess : fail(ncclInternalError, "ncclCommFinalize: aborted");
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclCommDestroy", comm, Needs::kExistence, "", result);
  if (found == nullptr) return result;
  if (world.pop_hang("ncclCommDestroy", found->home_rank)) found->pending.insert(HostRuntime::instance().make_point());
  if (!drain(lock, *found)) return fail(ncclInternalError, "ncclCommDestroy: aborted");
  remove_communicator(found);
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclCommRevoke", comm, Needs::kExistence, fmt::format(" flags={}", flags), result);
  if (found == nullptr) return result;
  if (flags != NCCL_REVOKE_DEFAULT || found->finalized || found->clique == nullptr)
    return fail(ncclInvalidUsage, "ncclCommRevoke: invalid flags, or the communicator is not in use");
  found->revoked = true;
  found->stopped = true;
  end_pending(*found);
  if (world.pop_hang("ncclCommRevoke", found->home_rank)) {
    const PointRef never = HostRuntime::instance().make_point();
    found->pending.insert(never);
    found->pending_arrivals.insert(never);
    return conclude(lock, found, never);
  }
  if (found->options.blocking) await_streams(lock, found);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin("ncclCommAbort", comm, Needs::kExistence, "", result);
  if (found == nullptr) return result;
  found->aborted = true;
  found->stopped = true;  // also for what is still queued in streams
  end_pending(*found);
  HostRuntime::instance().reach_point(found->formed);
  for (auto& [id, forming] : world.forming)
    std::erase_if(forming.arrived, [&](const auto& each) { return each.second == found; });
  if (in_group()) {
    free_at_group_end(found);
  } else {
    free_aborted(lock, found);
  }
  return ncclSuccess;
}

}  // extern "C"

}  // namespace accord::testing::nccl
