// The beginning of all calls, and how a call waits for the calls of other ranks.
#include "device/nccl_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace accord::testing::nccl {
namespace {

thread_local std::string last_error;

/// Integer options of the versions up to 2.29, with the smallest and the largest value that NCCL accepts.
struct IntegerOption {
  const char* name;
  int ncclConfig_t::*member;
  int min = INT_MIN;
  int max = INT_MAX;
};
constexpr IntegerOption kBeforeNetName[] = {{"blocking", &ncclConfig_t::blocking, 0, 1},
                                            {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, 0, 8},
                                            {"minCTAs", &ncclConfig_t::minCTAs, 1},
                                            {"maxCTAs", &ncclConfig_t::maxCTAs, 1}};
constexpr IntegerOption kBeforeCommName[] = {{"splitShare", &ncclConfig_t::splitShare, 0, 1},
                                             {"trafficClass", &ncclConfig_t::trafficClass}};
constexpr IntegerOption kAfterCommName[] = {{"collnetEnable", &ncclConfig_t::collnetEnable, 0, 1},
                                            {"CTAPolicy", &ncclConfig_t::CTAPolicy, 0},
                                            {"shrinkShare", &ncclConfig_t::shrinkShare, 0, 1},
                                            {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, 1},
                                            {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, 1},
                                            {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, 0, 1},
                                            {"graphUsageMode", &ncclConfig_t::graphUsageMode, 0, 2},
                                            {"numRmaCtx", &ncclConfig_t::numRmaCtx, 1}};

}  // namespace

ncclResult_t fail(ncclResult_t result, std::string reason) {
  last_error = std::move(reason);
  return fail_group(result);
}

World& World::instance() {
  static auto* const world = new World;  // outlives the threads of streams
  return *world;
}

void World::log_call(int rank, std::string line) {
  log[rank].push_back(std::move(line) + (in_group() ? " group" : ""));
}

ncclResult_t World::pop_failure(std::string_view symbol, int rank) {
  const auto found = failures.find(symbol);
  if (found == failures.end()) return ncclSuccess;
  auto& queue = found->second;
  const auto mine = std::find_if(queue.begin(), queue.end(),
                                 [&](const Failure& each) { return !each.rank.has_value() || *each.rank == rank; });
  if (mine == queue.end()) return ncclSuccess;
  const ncclResult_t result = mine->result;
  queue.erase(mine);
  return fail(result, fmt::format("{}: a failure that the test requested", symbol));
}

bool World::pop_hang(std::string_view symbol, int rank) { return hangs.erase({std::string(symbol), rank}) != 0; }

std::shared_ptr<ncclComm> World::find(ncclComm* comm) const {
  const auto found = live.find(comm);
  return found == live.end() ? nullptr : found->second;
}

ncclComm::ncclComm(int home_rank_, int device_, Options options_)
    : home_rank(home_rank_),
      device(device_),
      options(std::move(options_)),
      formed(HostRuntime::instance().make_point()) {}

ncclResult_t read_options(const ncclConfig_t* config, const Options& inherited, Options& options) {
  options = inherited;
  options.blocking = World::instance().blocking.value_or(options.blocking);
  if (config == nullptr) return ncclSuccess;
  ncclConfig_t given;
  std::size_t size = 0;
  std::memcpy(&size, config, sizeof size);
  if (size < offsetof(ncclConfig_t, blocking)) return fail(ncclInvalidArgument, "ncclConfig_t without its size");
  std::memcpy(&given, config, std::min(size, sizeof given));
  if (given.magic != NCCL_API_MAGIC) return fail(ncclInvalidArgument, "ncclConfig_t without NCCL_CONFIG_INITIALIZER");

  options = {};
  ncclResult_t result = ncclSuccess;
  const auto read = [&](const IntegerOption& option) {
    const int value = given.*option.member;
    if (value == NCCL_CONFIG_UNDEF_INT) return;
    options.text += fmt::format(" {}={}", option.name, value);
    if (value < option.min || value > option.max)
      result = fail(ncclInvalidArgument, fmt::format("ncclConfig_t: {} is {}", option.name, value));
  };
  std::for_each(std::begin(kBeforeNetName), std::end(kBeforeNetName), read);
  if (given.netName != nullptr) options.text += fmt::format(" netName={}", given.netName);
  std::for_each(std::begin(kBeforeCommName), std::end(kBeforeCommName), read);
  if (given.commName != nullptr) options.text += fmt::format(" commName={}", given.commName);
  std::for_each(std::begin(kAfterCommName), std::end(kAfterCommName), read);
  if (given.minCTAs > 0 && given.maxCTAs > 0 && given.minCTAs > given.maxCTAs)
    result = fail(ncclInvalidArgument, "ncclConfig_t: minCTAs is above maxCTAs");
  options.blocking = World::instance().blocking.value_or(given.blocking != 0);
  return result;
}

ncclResult_t state_of(const ncclComm& comm) {
  if (comm.error != ncclSuccess) return comm.error;
  const HostRuntime& runtime = HostRuntime::instance();
  const bool drains = comm.finalized && !(runtime.is_reached(comm.last) && comm.pending.empty());
  const bool waits = !runtime.is_reached(comm.formed) || !comm.pending_arrivals.empty();
  return waits || drains || comm.is_unpolled ? ncclInProgress : ncclSuccess;
}

void count_call(std::string_view symbol, int rank) {
  World& world = World::instance();
  ++world.calls[std::string(symbol)];
  world.callers[{std::string(symbol), rank}] = std::this_thread::get_id();
}

std::shared_ptr<ncclComm> find_in_state(std::string_view symbol, ncclComm_t comm, Needs needs, ncclResult_t& result) {
  World& world = World::instance();
  auto found = world.find(comm);
  if (found == nullptr) {
    result = fail(ncclInvalidArgument, fmt::format("{}: no such communicator", symbol));
    return nullptr;
  }
  count_call(symbol, found->home_rank);
  result = world.pop_failure(symbol, found->home_rank);
  if (result != ncclSuccess) return nullptr;
  if (needs == Needs::kExistence) return found;
  result = state_of(*found);
  if (result == ncclSuccess) return found;
  result = result == ncclInProgress
               ? fail(ncclInvalidArgument, fmt::format("{}: the previous call is still in progress", symbol))
               : fail(result, fmt::format("{}: {}", symbol, found->error_text));
  return nullptr;
}

std::shared_ptr<ncclComm> begin(std::string_view symbol, ncclComm_t comm, Needs needs, const std::string& line,
                                ncclResult_t& result) {
  World& world = World::instance();
  if (const auto found = world.find(comm); found != nullptr)
    world.log_call(found->home_rank, fmt::format("{} rank={}{}", symbol, found->rank, line));
  return find_in_state(symbol, comm, needs, result);
}

void form(const std::vector<std::shared_ptr<ncclComm>>& ranks) {
  const auto clique = std::make_shared<Clique>();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank]->clique = clique;
    ranks[rank]->rank = static_cast<int>(rank);
    ranks[rank]->size = static_cast<int>(ranks.size());
    World::instance().live[ranks[rank].get()] = ranks[rank];
    std::atomic_ref(*ranks[rank]->handle).store(ranks[rank].get());  // on another thread than the owner's
    HostRuntime::instance().reach_point(ranks[rank]->formed);
  }
}

ncclResult_t conclude(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm, const PointRef& done) {
  HostRuntime& runtime = HostRuntime::instance();
  const bool blocks = comm->options.blocking, grouped = in_group();
  if (grouped) wait_at_group_end(comm, done);
  if (!grouped && !blocks) ++World::instance().started_threads;
  if (!grouped && blocks) ++comm->in_calls;
  lock.unlock();
  if (grouped) return ncclSuccess;
  if (!blocks) return runtime.is_reached(done) ? ncclSuccess : ncclInProgress;
  const bool is_done = runtime.await(done);
  lock.lock();
  --comm->in_calls;
  const bool is_stopped = comm->aborted || comm->cut.contains(done);
  lock.unlock();
  if (!is_done) return ncclSystemError;
  return is_stopped ? fail(ncclInternalError, "the communicator was aborted by another thread") : ncclSuccess;
}

ncclResult_t connect_ranks(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm) {
  if (!World::instance().connects_later || std::exchange(comm->has_connected, true)) return ncclSuccess;
  const ncclResult_t result = rendezvous(lock, "Connect", {.comm = comm.get(), .child = nullptr},
                                         static_cast<std::size_t>(comm->size), [](Arrivals&) {});
  lock.lock();
  return result;
}

ncclResult_t rendezvous(std::unique_lock<std::mutex>& lock, std::string_view name, Arrival arrival,
                        std::size_t expected, const std::function<void(Arrivals&)>& complete) {
  const auto comm = World::instance().find(arrival.comm);
  HostRuntime& runtime = HostRuntime::instance();
  arrival.done = runtime.make_point();
  const PointRef done = arrival.done;
  comm->pending.insert(done);
  comm->pending_arrivals.insert(done);
  if (World::instance().pop_hang(fmt::format("ncclComm{}", name.substr(0, name.find(' '))), comm->home_rank))
    return conclude(lock, comm, done);
  const std::string key = fmt::format("{} {}", name, comm->arrivals[std::string(name)]++);
  Arrivals& arrivals = comm->clique->arrivals[key];
  arrivals.emplace(comm->rank, std::move(arrival));
  if (arrivals.size() == expected) {
    complete(arrivals);
    for (auto& [rank, each] : arrivals) {
      each.comm->pending.erase(each.done);
      each.comm->pending_arrivals.erase(each.done);
      runtime.reach_point(each.done);
    }
    comm->clique->arrivals.erase(key);
  }
  return conclude(lock, comm, done);
}

/// Gives the caller a communicator whose call was ended, as NCCL does: it must be aborted.
void give_unformed(const std::shared_ptr<ncclComm>& child) {
  child->error = ncclInternalError;
  child->error_text = "the call that creates it was aborted";
  World::instance().live[child.get()] = child;
  std::atomic_ref(*child->handle).store(child.get());
}

void end_pending(ncclComm& comm) {
  const auto is_its = [&](const Posted& each) { return each.comm == &comm; };
  if (comm.clique != nullptr) {
    for (auto& [number, posted] : comm.clique->collectives) posted.erase(comm.rank);
    for (auto& [pair, posted] : comm.clique->sends) std::erase_if(posted, is_its);
    for (auto& [pair, posted] : comm.clique->receives) std::erase_if(posted, is_its);
    for (auto& [key, arrivals] : comm.clique->arrivals) {
      const auto mine = arrivals.find(comm.rank);
      if (mine == arrivals.end()) continue;
      if (const auto& child = mine->second.child; child != nullptr) give_unformed(child);
      arrivals.erase(mine);
    }
  }
  for (const PointRef& point : comm.pending) HostRuntime::instance().reach_point(point);
  comm.cut.insert(comm.pending.begin(), comm.pending.end());
  comm.pending.clear();
  comm.pending_arrivals.clear();
}

void await_streams(std::unique_lock<std::mutex>& lock, const std::shared_ptr<ncclComm>& comm) {
  HostRuntime& runtime = HostRuntime::instance();
  const PointRef last = comm->last;
  if (runtime.is_reached(last)) return;
  lock.unlock();
  (void)runtime.await(last);
  lock.lock();
}

extern "C" const char* ncclGetLastError(ncclComm_t comm) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  if (const auto found = world.find(comm); found != nullptr && !found->error_text.empty())
    last_error = found->error_text;
  return last_error.c_str();
}

}  // namespace accord::testing::nccl
