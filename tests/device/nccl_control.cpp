#include "device/nccl_control.hpp"

#include <dlfcn.h>

#include "device/nccl_world.hpp"

namespace accord::testing {

using nccl::World;

std::string library_path() {
  Dl_info place = {};
  const bool found = dladdr(reinterpret_cast<void*>(&nccl::ncclGetVersion), &place) != 0 && place.dli_fname != nullptr;
  return found ? place.dli_fname : "";
}

std::vector<std::string> log_of(int rank) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  return world.log[rank];
}

void clear_log() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.log.clear();
}

void set_version(int version) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.version = version;
}

void fail_next(std::string_view symbol, nccl::ncclResult_t result, std::optional<int> rank) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.failures[std::string(symbol)].push_back({rank, result});
}

void hang_next(std::string_view symbol, int rank) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.hangs.insert({std::string(symbol), rank});
}

void set_windows(bool exist) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.has_windows = exist;
}

void set_connecting(bool connects) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.connects_later = connects;
}

void set_blocking(std::optional<bool> blocking) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.blocking = blocking;
}

int calls_of(std::string_view symbol) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  const auto found = world.calls.find(symbol);
  return found == world.calls.end() ? 0 : found->second;
}

std::thread::id caller_of(std::string_view symbol, int rank) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  return world.callers[{std::string(symbol), rank}];
}

int started_threads() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  return world.started_threads;
}

int blocked_threads() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  int blocked = 0;
  for (const auto& [handle, comm] : world.live) blocked += comm->in_calls;
  return blocked;
}

int aborts_during_calls() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  return world.aborts_during_calls;
}

void set_async_error(int rank, nccl::ncclResult_t result) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  for (const auto& [handle, comm] : world.live) {
    if (comm->home_rank != rank) continue;
    comm->error = result;
    comm->error_text = "an error that the test requested";
  }
}

LiveNccl live_nccl() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  LiveNccl live = world.counts;
  for (const auto& [handle, comm] : world.live) live.communicators += comm->revoked && comm->captured ? 0 : 1;
  return live;
}

void reset_nccl() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.version = nccl::kVersion;
  world.log.clear();
  world.failures.clear();
  world.hangs.clear();
  world.counts = {};  // except of communicators that are being aborted in the background
  for (const auto& [handle, comm] : world.live) {
    world.counts.registrations += static_cast<int>(comm->registrations.size());
    world.counts.windows += static_cast<int>(comm->windows.size());
    world.counts.redops += static_cast<int>(comm->redops.size());
    comm->error = nccl::ncclSuccess;
    comm->error_text.clear();
  }
  world.has_windows = true;
  world.connects_later = false;
  world.blocking = std::nullopt;
  world.calls.clear();
  world.callers.clear();
  world.started_threads = 0;
  world.aborts_during_calls = 0;
}

}  // namespace accord::testing
