#include "comm/channel/turns.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace accord::comm {
namespace {

TEST(Turns, are_taken_one_at_a_time) {
  Turns turns;
  EXPECT_TRUE(turns.idle());
  ASSERT_TRUE(turns.try_acquire(Turns::kCall));
  EXPECT_FALSE(turns.idle());
  EXPECT_FALSE(turns.try_acquire(Turns::kCall));
  EXPECT_FALSE(turns.release());
  EXPECT_TRUE(turns.idle());
  EXPECT_TRUE(turns.try_acquire(Turns::kNoCall));
}

TEST(Turns, are_passed_through_the_queue) {
  Turns turns;
  ASSERT_TRUE(turns.try_acquire(Turns::kCall));
  EXPECT_EQ(turns.queue().before, 1u);
  EXPECT_EQ(turns.queue().before, 2u);
  EXPECT_TRUE(turns.release());
  EXPECT_FALSE(turns.try_acquire(Turns::kCall));
  EXPECT_TRUE(turns.next());
  EXPECT_FALSE(turns.next());
  EXPECT_EQ(turns.queue().before, 0u);
}

TEST(Turns, number_only_calls) {
  Turns turns;
  ASSERT_TRUE(turns.try_acquire(Turns::kCall));
  turns.release();
  ASSERT_TRUE(turns.try_acquire(Turns::kNoCall));
  turns.release();
  EXPECT_EQ(turns.queue().number, 2u);
  EXPECT_EQ(turns.queue().number, 3u);
  Turns others;
  ASSERT_TRUE(others.try_acquire(Turns::kNoCall));
  EXPECT_EQ(others.queue().number, 1u);
  EXPECT_EQ(others.count_call(), 2u);
  EXPECT_EQ(others.queue().number, 3u);
}

/// Takes the turn or queues. The thread that has the turn runs queued calls.
class Together {
 public:
  void run_one() {
    if (turns_.try_acquire(Turns::kCall)) {
      section();
      if (turns_.release()) run_queued();
    } else if (turns_.queue().before == 0) {
      run_queued();
    }
  }
  long done() const { return done_; }

 private:
  void run_queued() {
    do section();
    while (turns_.next());
  }
  void section() {
    EXPECT_FALSE(inside_.exchange(true, std::memory_order_relaxed));
    ++done_;
    inside_.store(false, std::memory_order_relaxed);
  }

  Turns turns_;
  std::atomic<bool> inside_ = false;  // imposes no order; the turns must do that
  long done_ = 0;
};

// Repeated, because the moment in which a second thread arrives occurs only once in the life of the turns.
TEST(Turns, stay_exclusive_when_a_second_thread_arrives) {
  constexpr int kLives = 50, kThreads = 3, kEach = 300;
  for (int life = 0; life < kLives; ++life) {
    Together together;
    std::atomic<int> ready = 0;
    std::vector<std::thread> others;
    for (int i = 1; i < kThreads; ++i)
      others.emplace_back([&] {
        ++ready;
        for (int k = 0; k < kEach; ++k) together.run_one();
      });
    int alone = 0;
    for (; ready < kThreads - 1; ++alone) together.run_one();
    for (int k = 0; k < kEach; ++k) together.run_one();
    for (std::thread& other : others) other.join();
    ASSERT_EQ(together.done(), alone + kThreads * kEach);
  }
}

TEST(Turns, a_thread_that_takes_the_turn_after_a_stop_sees_it) {
  for (int life = 0; life < 200; ++life) {
    Turns turns;
    std::atomic<bool> stop = false;
    std::atomic<long> taken = 0;
    bool closed = false;
    std::thread worker([&] {
      for (bool stopped = false; !stopped;) {
        ASSERT_TRUE(turns.try_acquire(Turns::kCall));
        stopped = stop.load(std::memory_order_seq_cst);
        EXPECT_TRUE(stopped || !closed);
        turns.release();
        taken.fetch_add(1, std::memory_order_relaxed);
      }
    });
    while (taken.load(std::memory_order_relaxed) < 10 + life % 7) {
    }
    stop.store(true, std::memory_order_seq_cst);
    Turns::fence();
    while (!turns.idle()) {
    }
    closed = true;
    worker.join();
  }
}

}  // namespace
}  // namespace accord::comm
