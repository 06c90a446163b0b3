// Timings are made from known figures of a machine, which have to come out again.
#include "sim/calibration.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/machine_text.hpp"

namespace accord::sim {
namespace {

constexpr double kCallTime = 80e-9, kStepTime = 6e-9, kHopTime = 70e-9;
constexpr double kTouched = 1 / 40e9, kPublished = 1 / 8e9, kExchanged = 1 / 5e9, kPackets = 1 / 6e9;  // of a byte
constexpr double kPacketSum = 1 / 3e9;

Figure exactly(double seconds) { return {seconds, 0}; }

HostTimings known_timings() {
  HostTimings timings{.ranks = 4, .cores = 2};
  timings.call = exactly(kCallTime);
  timings.hop = exactly(kHopTime);
  for (const int times : {16, 32}) timings.steps.push_back({times, exactly(5e-7 + times * kStepTime)});
  for (const double bytes : {1e3, 1e5}) {
    timings.copies.push_back({bytes, exactly(2 * bytes * kTouched)});
    timings.writes.push_back({bytes, exactly(bytes * (2 * kTouched + kPublished))});
    timings.reads.push_back({bytes, exactly(bytes * (2 * kTouched + kExchanged))});
    timings.packet_writes.push_back({bytes, exactly(bytes * (2 * kTouched + kExchanged + kPackets))});
    timings.packet_reads.push_back({bytes, exactly(bytes * (2 * kTouched + kPackets))});
    timings.kernel_reads.push_back({bytes, exactly(bytes / 10e9)});
  }
  timings.packet_sum = {3584, exactly(3584 * (3 * kTouched + kPacketSum))};
  timings.memory_rates = {9e9, 11e9};
  timings.core_switch = {2e-6, 2};
  return timings;
}

TEST(Calibration, recovers_the_figures_that_made_the_timings) {
  const HostModel host = host_from(known_timings()).machine.host;
  EXPECT_EQ(host.ranks, 4);
  EXPECT_EQ(host.cores, 2);
  EXPECT_NEAR(host.call_seconds, kCallTime, 1e-15);
  EXPECT_NEAR(host.times.seconds_per_step, kStepTime, 1e-15);
  EXPECT_NEAR(host.times.seconds_per_hop, kHopTime, 1e-15);
  for (const double bytes : {100.0, 1e3, 1e4, 1e6}) {
    EXPECT_NEAR(host.times.touched.seconds_per_byte(bytes), kTouched, 1e-15);
    EXPECT_NEAR(host.times.published.seconds_per_byte(bytes), kPublished, 1e-15);
    EXPECT_NEAR(host.times.exchanged.seconds_per_byte(bytes), kExchanged, 1e-15);
    EXPECT_NEAR(host.times.packets.seconds_per_byte(bytes), kPackets, 1e-15);
    EXPECT_NEAR(host.times.packet_sums.seconds_per_byte(bytes), kPacketSum, 1e-15);
    EXPECT_NEAR(host.times.read.seconds_per_byte(bytes), 1e-10, 1e-15);
  }
  EXPECT_DOUBLE_EQ(host.memory_bytes_per_second, 20e9);
  EXPECT_DOUBLE_EQ(host.core_switch_seconds, 2e-6);
}

TEST(Calibration, takes_what_is_faster_than_its_parts_for_free) {
  HostTimings timings = known_timings();
  for (Sized& one : timings.writes) one.seconds = exactly(one.bytes * kTouched);  // less than a copy
  const HostModel host = host_from(timings).machine.host;
  EXPECT_LT(host.times.published.seconds_per_byte(1e4), 1e-12);
}

TEST(Calibration, is_not_changed_by_one_disturbed_point) {
  HostTimings timings = known_timings();
  timings.steps = {};
  for (const int times : {16, 32, 48, 64, 80})
    timings.steps.push_back({times, exactly((times == 48 ? 1e-3 : 0) + 5e-7 + times * kStepTime)});
  EXPECT_NEAR(host_from(timings).machine.host.times.seconds_per_step, kStepTime, 1e-15);
}

TEST(Calibration, tells_messages_from_the_latency_of_the_network) {
  constexpr double kMessage = 2e-6, kLatency = 15e-6;
  Calibrated calibrated = host_from(known_timings());
  NetworkTimings timings{.round_trips = {},
                         .message = exactly(kCallTime + 2 * kStepTime + kMessage),
                         .stream = exactly(1.2e9),
                         .share_cores = true};
  for (const int times : {1, 4})
    timings.round_trips.push_back({times, exactly(1e-6 + 2 * times * (kLatency + 2 * kMessage + 2 * kStepTime))});
  add_network(timings, calibrated);
  const NetworkModel& network = calibrated.machine.network;
  EXPECT_TRUE(calibrated.machine.has_network && network.hosts_share_cores);
  EXPECT_NEAR(network.message_seconds, kMessage, 1e-12);
  EXPECT_NEAR(network.latency_seconds, kLatency, 1e-12);
  EXPECT_DOUBLE_EQ(network.nic_bytes_per_second, 1.2e9);
}

TEST(Calibration, is_written_as_a_file_that_reads_the_same) {
  Calibrated calibrated = host_from(known_timings());
  calibrated.machine.host.times.published = {};
  const std::string text = to_toml(calibrated.machine, calibrated.notes);
  const Result<Machine> read = machine_from_toml(text);
  ASSERT_TRUE(read.ok()) << read.status().message() << "\n" << text;
  EXPECT_EQ(to_toml(*read), to_toml(calibrated.machine));
  EXPECT_THAT(text, ::testing::HasSubstr("# two ranks that yield to each other; spread 200 %\ncore_switch_seconds"));
}

TEST(Calibration, finds_the_cache_where_copies_become_slow) {
  HostTimings timings = known_timings();
  EXPECT_EQ(host_from(timings).machine.host.cache_bytes, 0);  // they do not
  timings.copies.clear();
  for (const double bytes : {1e3, 1e6, 4e6, 16e6})
    timings.copies.push_back({bytes, exactly(2 * bytes * kTouched * (bytes > 4e6 ? 5 : 1))});
  EXPECT_NEAR(host_from(timings).machine.host.cache_bytes, 16e6, 1e6);  // half way from 8 to 32 MB, in logarithms
}

TEST(Figures, are_medians_and_quartiles) {
  const Figure figure = figure_of({5, 1, 4, 2, 3});
  EXPECT_DOUBLE_EQ(figure.value, 3);
  EXPECT_DOUBLE_EQ(figure_of({5, 1, 4, 2, 3}, Statistic::kMinimum).value, 1);
  EXPECT_DOUBLE_EQ(figure.spread, (4.0 - 2.0) / 3);
}

}  // namespace
}  // namespace accord::sim
