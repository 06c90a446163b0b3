// The cost of many groups of the same ranks: groups_accord GROUPS SIZE processes|threads. Prints one line of JSON:
// the time of a split, and for each group and rank descriptors, resident and proportional memory of the process, and
// pages of shared windows.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "accord/communicator.hpp"

namespace {

struct Use {
  long descriptors = 0;
  long rss_kib = 0, pss_kib = 0, window_kib = 0;
};

Use use_now() {
  Use use;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++use.descriptors;
  std::ifstream maps("/proc/self/smaps");
  bool is_window = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first;
    long kib = 0;
    words >> first >> kib;
    if (first.back() != ':') is_window = line.find("memfd:accord-rank") != std::string::npos;
    if (first == "Rss:") use.rss_kib += kib;
    if (first == "Pss:") use.pss_kib += kib;
    if (first == "Pss:" && is_window) use.window_kib += kib;
  }
  return use;
}

void check(const accord::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}

/// Creates the groups, then uses them. `is_printer`: this rank prints the result; true on one rank of each process.
void rank_of(const std::shared_ptr<accord::Store>& store, int rank, int size, int groups, bool is_printer,
             int ranks_here) {
  accord::Result<accord::Communicator> world = accord::Communicator::create(store, rank, size);
  check(world.status());
  check(world->split(0, rank, "warm up").status());
  check(world->barrier());
  const Use before = is_printer ? use_now() : Use();
  check(world->barrier());
  std::vector<accord::Communicator> created;
  const auto start = std::chrono::steady_clock::now();
  for (int g = 0; g < groups; ++g) {
    accord::Result<std::optional<accord::Communicator>> group = world->split(0, rank, "group" + std::to_string(g));
    check(group.status());
    created.push_back(**group);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  check(world->barrier());
  const Use idle = is_printer ? use_now() : Use();
  check(world->barrier());
  for (accord::Communicator& group : created) check(group.barrier());
  check(world->barrier());
  const Use used = is_printer ? use_now() : Use();
  check(world->barrier());
  if (!is_printer) return;
  const double each = static_cast<double>(groups) * ranks_here;
  const auto of = [each](long now, long then) { return static_cast<double>(now - then) / each; };
  std::printf(
      "{\"groups\": %d, \"ranks\": %d, \"split_us\": %.1f, \"descriptors\": %.3f, \"idle_rss_kib\": %.2f, "
      "\"idle_pss_kib\": %.2f, \"idle_window_kib\": %.2f, \"used_rss_kib\": %.2f, \"used_pss_kib\": %.2f}\n",
      groups, size, 1e6 * seconds / groups, of(idle.descriptors, before.descriptors), of(idle.rss_kib, before.rss_kib),
      of(idle.pss_kib, before.pss_kib), of(idle.window_kib, before.window_kib), of(used.rss_kib, before.rss_kib),
      of(used.pss_kib, before.pss_kib));
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const int groups = std::atoi(arguments[1]), size = std::atoi(arguments[2]);
  if (std::strcmp(arguments[3], "threads") == 0) {
    const std::shared_ptr<accord::Store> store = accord::make_memory_store();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] { rank_of(store, rank, size, groups, rank == 0, size); });
    for (std::thread& rank : ranks) rank.join();
    return 0;
  }
  std::string folder = (std::filesystem::temp_directory_path() / "accord-groups-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  for (int rank = 0; rank < size; ++rank) {
    if (fork() != 0) continue;
    accord::Result<std::shared_ptr<accord::Store>> store = accord::make_file_store(folder);
    check(store.status());
    rank_of(*store, rank, size, groups, rank == 0, 1);
    std::fflush(stdout);
    _exit(0);
  }
  int failed = 0;
  for (int status = 0; wait(&status) > 0;) failed += status != 0 ? 1 : 0;
  std::filesystem::remove_all(folder);
  return failed == 0 ? 0 : 1;
}
