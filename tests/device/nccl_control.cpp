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
  live.communicators = static_cast<int>(world.live.size());
  return live;
}

void reset_nccl() {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  world.version = nccl::kVersion;
  world.log.clear();
  world.failures.clear();
  world.hangs.clear();
  world.counts = {};
  world.has_windows = true;
  for (const auto& [handle, comm] : world.live) {
    comm->error = nccl::ncclSuccess;
    comm->error_text.clear();
  }
}

}  // namespace accord::testing
