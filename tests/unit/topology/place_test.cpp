#include <gmock/gmock.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "topology/topology.hpp"

namespace accord::topology {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ThisPlace, describes_this_process_on_this_machine) {
  const Result<Place> place = this_place();
  ASSERT_TRUE(place.ok()) << place.status().to_string();
  EXPECT_EQ(place->process, getpid());
  std::string boot_id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot_id);
  EXPECT_THAT(place->host, HasSubstr(boot_id));
  struct stat network = {};
  ASSERT_EQ(stat("/proc/self/ns/net", &network), 0);
  EXPECT_THAT(place->host, HasSubstr(std::to_string(network.st_ino)));
  EXPECT_EQ(place->cpus.size(), std::thread::hardware_concurrency());
  EXPECT_TRUE(std::is_sorted(place->cpus.begin(), place->cpus.end()));
  EXPECT_FALSE(place->numa_nodes.empty());
}

// The kernel's own list of each core's processors is the reference.
TEST(ThisPlace, counts_physical_cores) {
  const Place place = this_place().value();
  std::set<std::string> cores;
  for (const int cpu : place.cpus) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings)) GTEST_SKIP() << "this kernel does not report which processors share a core";
    cores.insert(siblings);
  }
  if (place.core_ids.empty()) {
    EXPECT_EQ(place.cores, static_cast<int>(place.cpus.size()));  // built without hwloc
  } else {
    EXPECT_EQ(place.cores, static_cast<int>(cores.size()));
    EXPECT_EQ(place.core_ids.size(), cores.size());
  }
}

TEST(ThisPlace, follows_the_affinity_of_the_process) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const int last = this_place().value().cpus.back();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const Result<Place> place = this_place();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_THAT(place->cpus, ElementsAre(last));
  EXPECT_EQ(place->cores, 1);
}

std::vector<int> random_ascending(std::mt19937& random, std::size_t count) {
  std::set<int> numbers;
  while (numbers.size() < count) numbers.insert(static_cast<int>(random() % 5000));
  return {numbers.begin(), numbers.end()};
}

TEST(PlaceJson, round_trips_any_place) {
  std::mt19937 random(4);
  for (int i = 0; i < 500; ++i) {
    Place place;
    place.host = "host-" + std::to_string(random()) + "\"\\\n/\xc3\xa9";
    place.process = static_cast<int>(random() % 4194304);
    place.cpus = random_ascending(random, 1 + random() % 40);
    place.numa_nodes = random_ascending(random, random() % 4);
    place.cores = static_cast<int>(1 + random() % place.cpus.size());
    if (random() % 2 == 0) place.core_ids = random_ascending(random, static_cast<std::size_t>(place.cores));
    if (random() % 2 == 0) place.reader = "user-" + std::to_string(random());
    if (random() % 2 == 0) place.process_space = "pid-" + std::to_string(random());
    const Result<Place> back = place_from_json(to_json(place));
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ(back->reader, place.reader);
    EXPECT_EQ(back->process_space, place.process_space);
    EXPECT_EQ(back->host, place.host);
    EXPECT_EQ(back->process, place.process);
    EXPECT_EQ(back->cpus, place.cpus);
    EXPECT_EQ(back->numa_nodes, place.numa_nodes);
    EXPECT_EQ(back->cores, place.cores);
    EXPECT_EQ(back->core_ids, place.core_ids);
  }
}

TEST(PlaceJson, is_json_with_the_names_of_the_fields) {
  const Place place{.host = "h",
                    .process = 12,
                    .cpus = {0, 1},
                    .numa_nodes = {0},
                    .cores = 1,
                    .core_ids = {0},
                    .reader = "me",
                    .process_space = "pid-7"};
  EXPECT_EQ(
      to_json(place),
      R"({"core_ids":[0],"cores":1,"cpus":[0,1],"host":"h","numa_nodes":[0],"process":12,"process_space":"pid-7","reader":"me"})");
}

TEST(PlaceJson, rejects_text_that_is_not_a_place_and_gives_the_reason) {
  const std::pair<std::string, std::string> refused[] = {
      {"", "expected a JSON object"},
      {"[1]", "expected a JSON object"},
      {R"({"host":"h")", "expected a JSON object"},
      {R"({"host":"h"})", "is missing"},
      {R"({"hots":"h","process":1,"cpus":[0],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "did you mean \"host\""},
      {R"({"host":7,"process":1,"cpus":[0],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "\"host\" is not a string"},
      {R"({"host":"h","process":1,"cpus":[0],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":1,"process_space":""})",
       "\"reader\" is no"},
      {R"({"host":"h","process":1,"cpus":[0],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":7})",
       "\"process_space\" is no"},
      {R"({"host":"","process":1,"cpus":[0],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "\"host\" is empty"},
      {R"({"host":"h","process":-1,"cpus":[0],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "\"process\""},
      {R"({"host":"h","process":1e30,"cpus":[0],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "\"process\""},
      {R"({"host":"h","process":1,"cpus":0,"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "\"cpus\" is not a list"},
      {R"({"host":"h","process":1,"cpus":[],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "\"cpus\" is empty"},
      {R"({"host":"h","process":1,"cpus":[1,0],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "not ascending"},
      {R"({"host":"h","process":1,"cpus":[[0]],"numa_nodes":[0],"cores":1,"core_ids":[],"reader":"","process_space":""})",
       "\"cpus\" is not a whole"},
      {R"({"host":"h","process":1,"cpus":[0],"numa_nodes":[0],"cores":0,"core_ids":[],"reader":"","process_space":""})",
       "\"cores\""},
      {R"({"host":"h","process":1,"cpus":[0],"numa_nodes":[0],"cores":2,"core_ids":[],"reader":"","process_space":""})",
       "2 cores of 1 processors"},
      {R"({"host":"h","process":1,"cpus":[0],"numa_nodes":[0],"cores":1,"core_ids":[0,1],"reader":"","process_space":""})",
       "2 entries for 1 cores"}};
  for (const auto& [text, why] : refused) {
    const Status status = place_from_json(text).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << text;
    EXPECT_THAT(status.message(), HasSubstr(why)) << text;
  }
}

TEST(PlaceJson, damaged_text_is_a_valid_place_or_rejected) {
  std::mt19937 random(9);
  const std::string good =
      to_json({.host = "host", .process = 1, .cpus = {0, 1, 2}, .numa_nodes = {0}, .cores = 2, .core_ids = {0, 2}});
  for (int i = 0; i < 10000; ++i) {
    std::string text = good;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0)
        text[at] = static_cast<char>(random());
      else
        text.erase(at, random() % 5);
      if (text.empty()) break;
    }
    const Result<Place> place = place_from_json(text);
    if (place.ok()) {
      EXPECT_LE(static_cast<std::size_t>(place->cores), place->cpus.size());
      EXPECT_TRUE(std::is_sorted(place->cpus.begin(), place->cpus.end()));
    } else {
      EXPECT_EQ(place.status().code(), StatusCode::kCorrupt);
    }
  }
  EXPECT_EQ(place_from_json(std::string(100'000, '[')).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace accord::topology
