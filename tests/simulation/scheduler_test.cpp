#include "simulation/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "simulation/world.hpp"

namespace accord::simulation {
namespace {

using ::testing::HasSubstr;

/// Three threads of two processes take turns with a lock. Returns the order in which they got it.
std::string order_of_turns(std::uint64_t seed, std::uint64_t* trace) {
  World world(seed);
  std::string order;
  order.reserve(100);
  for (const char name : {'a', 'b'})
    world.scheduler().start_process(std::string(1, name), 0, [&order, name] {
      std::mutex mutex;
      const auto take_turns = [&](char letter) {
        for (int turn = 0; turn < 5; ++turn) {
          const std::lock_guard lock(mutex);
          order += letter;
          std::this_thread::yield();
        }
      };
      std::thread other([&] { take_turns(static_cast<char>(name - 'a' + 'A')); });
      take_turns(name);
      other.join();
    });
  EXPECT_TRUE(world.scheduler().run(kNever).all_ended);
  *trace = world.scheduler().trace();
  return order;
}

TEST(Scheduler, a_seed_determines_the_order_of_all_steps) {
  std::uint64_t first = 0, again = 0, other = 0;
  const std::string order = order_of_turns(1, &first);
  EXPECT_EQ(order.size(), 20);
  EXPECT_EQ(order_of_turns(1, &again), order);
  EXPECT_EQ(again, first);
  EXPECT_NE(order_of_turns(2, &other), order);
  EXPECT_NE(other, first);
}

TEST(Scheduler, a_deadlock_is_found_and_its_threads_are_named) {
  World world(1);
  world.scheduler().start_process("philosophers", 0, [] {
    std::mutex left, right;
    std::unique_lock first(left);
    std::thread other([&] {
      const std::lock_guard lock_right(right);
      const std::lock_guard lock_left(left);
    });
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const std::lock_guard second(right);
  });
  const Outcome outcome = world.scheduler().run(kNever);
  EXPECT_FALSE(outcome.all_ended);
  EXPECT_THAT(outcome.stuck, HasSubstr("philosophers, thread main waits for a mutex"));
  EXPECT_THAT(outcome.stuck, HasSubstr("philosophers, thread thread waits for a mutex"));
}

TEST(Scheduler, a_wait_that_nobody_ends_lasts_exactly_until_its_deadline) {
  World world(1);
  std::chrono::steady_clock::duration waited{};
  world.scheduler().start_process("waiter", 0, [&] {
    std::mutex mutex;
    std::condition_variable condition;
    std::unique_lock lock(mutex);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(condition.wait_for(lock, std::chrono::hours(1), [] { return false; }));
    waited = std::chrono::steady_clock::now() - begin;
  });
  EXPECT_TRUE(world.scheduler().run(kNever).all_ended);
  EXPECT_GE(waited, std::chrono::hours(1));
  EXPECT_LT(waited, std::chrono::hours(1) + std::chrono::milliseconds(10));
}

TEST(Scheduler, a_killed_process_runs_no_further_and_others_do) {
  World world(1);
  int steps = 0, steps_of_other = 0;
  Process& victim = world.scheduler().start_process("victim", 0, [&] {
    while (true) {
      ++steps;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  world.scheduler().start_process("other", 0, [&] {
    for (; steps_of_other < 100; ++steps_of_other) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  world.scheduler().at(kSecond + 10 * kMillisecond, [&] { world.scheduler().kill(victim); });
  EXPECT_TRUE(world.scheduler().run(kNever).all_ended);
  EXPECT_GE(steps, 5);
  EXPECT_LE(steps, 10);
  EXPECT_EQ(steps_of_other, 100);
}

TEST(Scheduler, a_paused_process_continues_afterwards) {
  World world(1);
  Time longest = 0;
  Process& process = world.scheduler().start_process("paused", 0, [&] {
    Time last = Scheduler::current()->now();
    for (int i = 0; i < 50; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      longest = std::max(longest, Scheduler::current()->now() - last);
      last = Scheduler::current()->now();
    }
  });
  world.scheduler().at(kSecond + 5 * kMillisecond,
                       [&] { world.scheduler().pause(process, world.scheduler().now() + kSecond); });
  EXPECT_TRUE(world.scheduler().run(kNever).all_ended);
  EXPECT_GE(longest, kSecond - kMillisecond);
  EXPECT_LE(longest, kSecond + 3 * kMillisecond);
}

}  // namespace
}  // namespace accord::simulation
