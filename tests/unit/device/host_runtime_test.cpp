// Devices over host memory: the behavior on which tests of GPU code rely.
#include "device/host_runtime.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "device/device_memory.hpp"

namespace accord::testing {
namespace {

using device::Event;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Device kFirst{DeviceType::kCuda, 0};
constexpr Device kSecond{DeviceType::kCuda, 1};

struct HostRuntimeTest : ::testing::Test {
  std::mutex mutex;
  std::vector<int> notes;
  HostRuntime runtime{2};

  Stream stream(Device device = kFirst) { return runtime.create_stream(device, false).value(); }
  Event event(Device device = kFirst) { return runtime.create_event(device).value(); }
  /// Puts a note into the stream.
  Status note(Stream stream, int number, Device device = kFirst) {
    return runtime.enqueue(device, stream, [this, number] {
      const std::lock_guard lock(mutex);
      notes.push_back(number);
    });
  }
};

TEST_F(HostRuntimeTest, a_stream_keeps_its_order_and_does_not_wait_for_others) {
  const Stream busy = stream(), free = stream();
  BusyStream hold = runtime.make_stream_busy(busy);
  ASSERT_TRUE(note(busy, 1).ok());
  ASSERT_TRUE(note(busy, 2).ok());
  ASSERT_TRUE(note(free, 3).ok());
  ASSERT_TRUE(note({}, 4).ok());
  ASSERT_TRUE(runtime.synchronize(kFirst, free).ok());
  ASSERT_TRUE(runtime.synchronize(kFirst, {}).ok());
  EXPECT_THAT(notes, ::testing::UnorderedElementsAre(3, 4));
  hold.release();
  ASSERT_TRUE(runtime.synchronize(kFirst, busy).ok());
  notes.erase(notes.begin(), notes.begin() + 2);
  EXPECT_THAT(notes, ElementsAre(1, 2));
}

TEST_F(HostRuntimeTest, a_copy_happens_in_its_stream) {
  std::vector<int> from(1000), to(1000);
  std::iota(from.begin(), from.end(), 7);
  const Stream first = stream();
  auto* const memory = static_cast<int*>(runtime.allocate(kFirst, 4000).value());
  BusyStream hold = runtime.make_stream_busy(first);
  ASSERT_TRUE(runtime.copy(memory, from.data(), 4000, kFirst, first).ok());
  ASSERT_TRUE(runtime.copy(to.data(), memory, 4000, kFirst, first).ok());
  EXPECT_NE(memory[0], 7);
  hold.release();
  ASSERT_TRUE(runtime.synchronize(kFirst, first).ok());
  EXPECT_EQ(to, from);
  ASSERT_TRUE(runtime.release(kFirst, memory).ok());
}

TEST_F(HostRuntimeTest, copies_of_pageable_memory_behind_unfinished_work_are_counted) {
  const Stream order = stream();
  void* const memory = runtime.allocate(kFirst, 8).value();
  void* const pinned = runtime.allocate_host(kFirst, 8).value();
  std::uint64_t pageable = 1;
  BusyStream busy = runtime.make_stream_busy(order);
  ASSERT_TRUE(runtime.copy(memory, pinned, 8, kFirst, order).ok());
  EXPECT_EQ(runtime.copies_behind_work(), 0U);
  ASSERT_TRUE(runtime.copy(memory, &pageable, 8, kFirst, order).ok());
  ASSERT_TRUE(runtime.copy(&pageable, memory, 8, kFirst, order).ok());
  EXPECT_EQ(runtime.copies_behind_work(), 2U);
  busy.release();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(runtime.synchronize(kFirst, order).ok());
    ASSERT_TRUE(runtime.copy(&pageable, memory, 8, kFirst, order).ok());
  }
  ASSERT_TRUE(runtime.synchronize(kFirst, order).ok());
  EXPECT_EQ(runtime.copies_behind_work(), 2U);
}

TEST_F(HostRuntimeTest, arrays_of_tests_are_copied_once_their_stream_is_done) {
  const OnDevice on{runtime, kFirst, stream()};
  const DeviceArray values(on, std::vector<float>(100, 1.0F), DType::kFloat32);
  for (const bool writes : {true, false}) {
    BusyStream busy = runtime.make_stream_busy(on.stream);
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      busy.release();
    });
    if (writes) {
      values.put(std::vector<std::byte>(400));
    } else {
      EXPECT_EQ(values.values<float>(), std::vector<float>(100, 0.0F));
    }
    later.join();
  }
  EXPECT_EQ(runtime.copies_behind_work(), 0U);
}

TEST_F(HostRuntimeTest, an_event_has_happened_once_its_last_record_is_reached) {
  const Event point = event();
  EXPECT_TRUE(runtime.has_happened(point).value());
  BusyStream hold = runtime.make_stream_busy({}, kFirst);
  ASSERT_TRUE(runtime.record(point, kFirst, {}).ok());
  EXPECT_FALSE(runtime.has_happened(point).value());
  const Stream free = stream();
  ASSERT_TRUE(runtime.record(point, kFirst, free).ok());
  ASSERT_TRUE(runtime.synchronize(kFirst, free).ok());
  EXPECT_TRUE(runtime.has_happened(point).value());
  ASSERT_TRUE(runtime.record(point, kFirst, {}).ok());
  hold.release();
  ASSERT_TRUE(runtime.synchronize(kFirst, {}).ok());
  EXPECT_TRUE(runtime.has_happened(point).value());
}

TEST_F(HostRuntimeTest, a_stream_waits_for_the_record_that_was_last_when_wait_was_called) {
  const Stream busy = stream(), later = stream(kSecond);
  const Event point = event();
  ASSERT_TRUE(runtime.wait(point, kSecond, later).ok());  // never recorded, so there is no wait
  BusyStream hold = runtime.make_stream_busy(busy);
  ASSERT_TRUE(note(busy, 1).ok());
  ASSERT_TRUE(runtime.record(point, kFirst, busy).ok());
  ASSERT_TRUE(runtime.wait(point, kSecond, later).ok());
  ASSERT_TRUE(note(later, 2, kSecond).ok());
  BusyStream again = runtime.make_stream_busy(busy);
  ASSERT_TRUE(runtime.record(point, kFirst, busy).ok());  // a second record, for which nothing waits
  hold.release();
  ASSERT_TRUE(runtime.synchronize(kSecond, later).ok());
  EXPECT_THAT(notes, ElementsAre(1, 2));
  EXPECT_FALSE(runtime.has_happened(point).value());
}

TEST_F(HostRuntimeTest, work_of_a_stream_runs_after_its_destruction) {
  const Stream destroyed = stream();
  const Event point = event();
  BusyStream hold = runtime.make_stream_busy(destroyed);
  ASSERT_TRUE(note(destroyed, 1).ok());
  ASSERT_TRUE(runtime.record(point, kFirst, destroyed).ok());
  ASSERT_TRUE(runtime.wait(point, kFirst, {}).ok());
  ASSERT_TRUE(runtime.destroy_event(point).ok());
  ASSERT_TRUE(runtime.destroy_stream(kFirst, destroyed).ok());
  EXPECT_EQ(runtime.live(), LiveObjects{});
  EXPECT_FALSE(note(destroyed, 2).ok());
  hold.release();
  ASSERT_TRUE(runtime.synchronize(kFirst, {}).ok());
  EXPECT_THAT(notes, ElementsAre(1));
}

TEST_F(HostRuntimeTest, wrong_devices_and_handles_are_errors_that_name_the_call) {
  const Stream first = stream();
  EXPECT_THAT(runtime.allocate({DeviceType::kCuda, 2}, 1).status().message(),
              HasSubstr("allocate: cuda:2 does not exist: there are 2"));
  EXPECT_FALSE(runtime.allocate({}, 1).ok());
  EXPECT_THAT(runtime.synchronize(kSecond, first).message(),
              HasSubstr("synchronize: the stream belongs to cuda:0, not to cuda:1"));
  EXPECT_THAT(runtime.record(event(kSecond), kFirst, first).message(), HasSubstr("the event belongs to cuda:1"));
  EXPECT_FALSE(runtime.has_happened({}).ok());
  EXPECT_FALSE(runtime.destroy_stream(kFirst, {}).ok());
  runtime.set_count(0);
  EXPECT_EQ(runtime.viable().code(), StatusCode::kUnsupported);
}

TEST_F(HostRuntimeTest, a_requested_failure_occurs_once) {
  runtime.fail_next("allocate", Status(StatusCode::kResourceExhausted, "full"));
  EXPECT_EQ(runtime.allocate(kFirst, 1).status().code(), StatusCode::kResourceExhausted);
  void* const memory = runtime.allocate(kFirst, 1).value();
  EXPECT_TRUE(runtime.release(kFirst, memory).ok());
  runtime.fail_next("viable", Status(StatusCode::kUnsupported, "driver"));
  EXPECT_FALSE(runtime.viable().ok());
  EXPECT_TRUE(runtime.viable().ok());
}

TEST_F(HostRuntimeTest, a_runtime_ends_while_streams_are_held_and_callers_wait) {
  HostRuntime ends;
  const Stream held = ends.create_stream(kFirst, false).value();
  const PointRef never = ends.make_point();
  ASSERT_TRUE(ends.enqueue(kFirst, held, [&ends, never] { EXPECT_FALSE(ends.await(never)); }).ok());
  ASSERT_TRUE(ends.enqueue(kFirst, held, [] { ADD_FAILURE() << "later work ran"; }).ok());
}

TEST_F(HostRuntimeTest, captured_work_runs_at_launch) {
  const Stream captured = stream();
  int value = 1, copy = 0;
  ASSERT_TRUE(runtime.begin_capture(kFirst, captured).ok());
  EXPECT_TRUE(runtime.is_capturing(kFirst, captured).value());
  ASSERT_TRUE(note(captured, 1).ok());
  ASSERT_TRUE(runtime.copy(&copy, &value, sizeof value, kFirst, captured).ok());
  const Graph graph = runtime.end_capture(kFirst, captured).value();
  EXPECT_FALSE(runtime.is_capturing(kFirst, captured).value());
  ASSERT_TRUE(runtime.synchronize(kFirst, captured).ok());
  EXPECT_TRUE(notes.empty());
  for (value = 5; value < 8; ++value) {
    ASSERT_TRUE(runtime.launch(graph, captured).ok());
    ASSERT_TRUE(runtime.synchronize(kFirst, captured).ok());
    EXPECT_EQ(copy, value);
  }
  EXPECT_THAT(notes, ElementsAre(1, 1, 1));
}

TEST_F(HostRuntimeTest, a_stream_that_waits_for_a_captured_event_joins_the_capture_and_runs_concurrently) {
  const Stream first = stream(), second = stream(kSecond), launched = stream();
  const Event fork = event(), join = event(kSecond);
  const PointRef crossed = runtime.make_point();
  ASSERT_TRUE(runtime.begin_capture(kFirst, first).ok());
  ASSERT_TRUE(note(first, 1).ok());
  ASSERT_TRUE(runtime.record(fork, kFirst, first).ok());
  ASSERT_TRUE(runtime.wait(fork, kSecond, second).ok());
  EXPECT_TRUE(runtime.is_capturing(kSecond, second).value());
  ASSERT_TRUE(runtime.enqueue(kFirst, first, [&] { runtime.await(crossed); }).ok());  // ends only if the other runs
  ASSERT_TRUE(runtime.enqueue(kSecond, second, [&] { runtime.reach_point(crossed); }).ok());
  ASSERT_TRUE(note(second, 2, kSecond).ok());
  ASSERT_TRUE(runtime.record(join, kSecond, second).ok());
  ASSERT_TRUE(runtime.wait(join, kFirst, first).ok());
  ASSERT_TRUE(note(first, 3).ok());
  const Graph graph = runtime.end_capture(kFirst, first).value();
  EXPECT_FALSE(runtime.is_capturing(kSecond, second).value());
  ASSERT_TRUE(runtime.launch(graph, launched).ok());
  ASSERT_TRUE(runtime.launch(graph, launched).ok());
  ASSERT_TRUE(note(launched, 4).ok());
  ASSERT_TRUE(runtime.synchronize(kFirst, launched).ok());
  EXPECT_THAT(notes, ElementsAre(1, 2, 3, 1, 2, 3, 4));
}

TEST_F(HostRuntimeTest, captured_work_cannot_be_queried) {
  const Stream captured = stream();
  const Event point = event();
  ASSERT_TRUE(runtime.begin_capture(kFirst, captured).ok());
  ASSERT_TRUE(runtime.record(point, kFirst, captured).ok());
  EXPECT_THAT(runtime.has_happened(point).status().message(),
              HasSubstr("has_happened: the event was last recorded in a capture"));
  EXPECT_FALSE(note(captured, 1).ok());
  EXPECT_FALSE(runtime.end_capture(kFirst, captured).ok());
  ASSERT_TRUE(runtime.begin_capture(kFirst, captured).ok());
  EXPECT_THAT(runtime.synchronize(kFirst, captured).message(), HasSubstr("being captured"));
  EXPECT_THAT(runtime.end_capture(kFirst, captured).status().message(), HasSubstr("invalidated"));
  EXPECT_TRUE(note(captured, 2).ok());
}

TEST_F(HostRuntimeTest, a_capture_and_work_outside_it_do_not_wait_for_each_other) {
  const Stream captured = stream(), outside = stream();
  const Event point = event(), inner = event();
  ASSERT_TRUE(runtime.record(point, kFirst, outside).ok());
  ASSERT_TRUE(runtime.begin_capture(kFirst, captured).ok());
  ASSERT_TRUE(runtime.record(inner, kFirst, captured).ok());
  EXPECT_THAT(runtime.wait(point, kFirst, captured).message(), HasSubstr("outside of the capture"));
  EXPECT_FALSE(runtime.end_capture(kFirst, captured).ok());
  EXPECT_THAT(runtime.wait(inner, kFirst, outside).message(), HasSubstr("a capture that has ended"));
  EXPECT_FALSE(runtime.begin_capture(kFirst, {}).ok());
}

TEST_F(HostRuntimeTest, the_origin_stream_must_wait_for_joined_streams) {
  const Stream first = stream(), second = stream();
  const Event fork = event();
  ASSERT_TRUE(runtime.begin_capture(kFirst, first).ok());
  ASSERT_TRUE(runtime.record(fork, kFirst, first).ok());
  ASSERT_TRUE(runtime.wait(fork, kFirst, second).ok());
  ASSERT_TRUE(note(second, 1).ok());
  EXPECT_FALSE(runtime.end_capture(kFirst, second).ok());
  EXPECT_THAT(runtime.end_capture(kFirst, first).status().message(), HasSubstr("was not waited for"));
  EXPECT_FALSE(runtime.is_capturing(kFirst, second).value());
}

TEST_F(HostRuntimeTest, threads_may_use_it_concurrently) {
  std::vector<std::thread> threads;
  std::vector<int> sums(4);
  for (int index = 0; index < 4; ++index)
    threads.emplace_back([&, index] {
      const Device device{DeviceType::kCuda, static_cast<std::int16_t>(index % 2)};
      const Stream own = runtime.create_stream(device, true).value();
      const Event point = runtime.create_event(device).value();
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(runtime.enqueue(device, own, [&] { ++sums[static_cast<std::size_t>(index)]; }).ok());
        EXPECT_TRUE(runtime.record(point, device, own).ok());
        EXPECT_TRUE(runtime.wait(point, device, {}).ok());
        EXPECT_TRUE(runtime.has_happened(point).ok());
      }
      EXPECT_TRUE(runtime.synchronize(device, own).ok());
      EXPECT_TRUE(runtime.destroy_event(point).ok());
      EXPECT_TRUE(runtime.destroy_stream(device, own).ok());
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(sums, ::testing::Each(50));
  EXPECT_EQ(runtime.live(), LiveObjects{});
}

TEST_F(HostRuntimeTest, a_copy_to_pageable_memory_holds_up_calls_of_other_threads_as_in_cuda) {
  runtime.set_pageable_copies_block(true);
  const Stream first = stream();
  const Event done = event();
  void* const memory = runtime.allocate(kFirst, 64).value();
  void* const pinned = runtime.allocate_host(kFirst, 64).value();
  BusyStream busy = runtime.make_stream_busy(first);
  ASSERT_TRUE(runtime.copy(pinned, memory, 64, kFirst, first).ok());
  EXPECT_FALSE(runtime.is_copying(kFirst)) << "pinned memory does not block";
  ASSERT_TRUE(runtime.record(done, kFirst, first).ok());
  std::vector<char> pageable(64);
  std::thread copies([&] { EXPECT_TRUE(runtime.copy(pageable.data(), memory, 64, kFirst, first).ok()); });
  while (!runtime.is_copying(kFirst)) std::this_thread::yield();
  EXPECT_TRUE(runtime.create_event(kSecond).ok()) << "another device is free";
  std::atomic<bool> has_begun = false, is_released = false;
  std::thread asks([&] {
    has_begun = true;
    EXPECT_TRUE(runtime.has_happened(done).value());
    EXPECT_TRUE(is_released);
  });
  while (!has_begun) std::this_thread::yield();
  is_released = true;
  busy.release();
  copies.join();
  asks.join();
}

TEST_F(HostRuntimeTest, a_blocking_stream_and_the_default_stream_wait_for_each_other_as_in_cuda) {
  const Stream blocking = stream(), other = stream();
  runtime.make_stream_blocking(blocking);
  BusyStream busy = runtime.make_stream_busy(blocking);
  ASSERT_TRUE(note({}, 2).ok());        // behind the busy stream
  ASSERT_TRUE(note(blocking, 3).ok());  // behind the default stream
  ASSERT_TRUE(note(other, 1).ok());
  ASSERT_TRUE(runtime.synchronize(kFirst, other).ok());
  busy.release();
  ASSERT_TRUE(runtime.synchronize(kFirst, blocking).ok());
  EXPECT_THAT(notes, ElementsAre(1, 2, 3));
}

TEST(HostRuntimeInstance, is_shared_and_each_thread_has_its_own_current_device) {
  EXPECT_EQ(&HostRuntime::instance(), &HostRuntime::instance());
  HostRuntime::set_current_device(3);
  std::thread([] { EXPECT_EQ(HostRuntime::current_device(), 0); }).join();
  EXPECT_EQ(HostRuntime::current_device(), 3);
  HostRuntime::set_current_device(0);
}

TEST_F(HostRuntimeTest, the_current_device_is_restored_and_an_invalid_one_changes_nothing) {
  {
    const device::CurrentDevice current(runtime, kSecond);
    EXPECT_TRUE(current.status().ok());
    EXPECT_EQ(HostRuntime::current_device(), 1);
    {
      const device::CurrentDevice inner(runtime, kFirst);
      EXPECT_EQ(HostRuntime::current_device(), 0);
    }
    EXPECT_EQ(HostRuntime::current_device(), 1);
  }
  EXPECT_EQ(HostRuntime::current_device(), 0);
  const device::CurrentDevice none(runtime, {DeviceType::kCuda, 2});
  EXPECT_FALSE(none.status().ok());
  EXPECT_EQ(HostRuntime::current_device(), 0);
  EXPECT_EQ(runtime.describe(kSecond).value(), "host memory");
}

TEST(HostRuntimeInstanceDeathTest, held_streams_do_not_keep_the_process_alive) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [] {
    static const auto* const never_released = new BusyStream(HostRuntime::instance().make_stream_busy({}));
    std::exit(never_released == nullptr ? 1 : 0);
  };
  EXPECT_EXIT(leave(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace accord::testing
