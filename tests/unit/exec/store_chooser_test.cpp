#include "exec/store_chooser.hpp"

#include <gtest/gtest.h>

namespace accord::exec {
namespace {

using kernels::Store;

/// A clock that advances only while a block is written, by the cost of the kind of store.
struct Machine {
  static inline Clock::time_point now;
  int temporal_ns = 0;
  int non_temporal_ns = 0;
  int written[2] = {0, 0};

  void operator()(Store store) {
    now += std::chrono::nanoseconds(store == Store::kTemporal ? temporal_ns : non_temporal_ns);
    ++written[static_cast<int>(store)];
  }
};

constexpr std::size_t kBlock = 256 << 10;

void write(StoreChooser& chooser, Machine& machine, int blocks, std::size_t bytes = kBlock) {
  for (int i = 0; i < blocks; ++i) chooser.run(bytes, [&](Store store) { machine(store); });
}

StoreChooser chooser_of_machine() {
  return StoreChooser([] { return Machine::now; });
}

TEST(StoreChooser, settles_on_the_cheaper_kind) {
  for (const Store cheaper : {Store::kTemporal, Store::kNonTemporal}) {
    StoreChooser chooser = chooser_of_machine();
    Machine machine{.temporal_ns = 3000, .non_temporal_ns = 3000};
    (cheaper == Store::kTemporal ? machine.temporal_ns : machine.non_temporal_ns) = 1000;
    write(chooser, machine, 8);
    EXPECT_EQ(chooser.kind(kBlock), cheaper);
    write(chooser, machine, 992);
    EXPECT_LE(machine.written[static_cast<int>(cheaper) ^ 1], 2 + 3 * 2);  // two in each periodic trial
  }
}

TEST(StoreChooser, adapts_to_a_changing_machine) {
  StoreChooser chooser = chooser_of_machine();
  Machine near{.temporal_ns = 1000, .non_temporal_ns = 3000};
  Machine far{.temporal_ns = 10000, .non_temporal_ns = 1500};
  for (int turn = 0; turn < 3; ++turn) {
    write(chooser, near, 100);
    EXPECT_EQ(chooser.kind(kBlock), Store::kTemporal) << turn;
    write(chooser, far, 100);
    EXPECT_EQ(chooser.kind(kBlock), Store::kNonTemporal) << turn;
  }
}

// The kind in use stays as cheap as it was, and the other becomes cheaper still: only the periodic trial can notice.
TEST(StoreChooser, repeats_its_trial_periodically) {
  StoreChooser chooser = chooser_of_machine();
  Machine machine{.temporal_ns = 1000, .non_temporal_ns = 3000};
  write(chooser, machine, 100);
  machine.non_temporal_ns = 200;
  write(chooser, machine, 1100);
  EXPECT_EQ(chooser.kind(kBlock), Store::kNonTemporal);
}

TEST(StoreChooser, a_trial_ends_after_one_block_that_is_far_too_slow) {
  StoreChooser chooser = chooser_of_machine();
  Machine machine{.temporal_ns = 10000, .non_temporal_ns = 1000};
  write(chooser, machine, 1000);
  EXPECT_EQ(chooser.kind(kBlock), Store::kNonTemporal);
  EXPECT_LE(machine.written[static_cast<int>(Store::kTemporal)], 2 + 3);
}

TEST(StoreChooser, one_slow_block_changes_nothing) {
  StoreChooser chooser = chooser_of_machine();
  Machine machine{.temporal_ns = 1000, .non_temporal_ns = 2000};
  for (int i = 0; i < 1000; ++i) {
    Machine interrupted{.temporal_ns = 1'000'000, .non_temporal_ns = 1'000'000};
    write(chooser, i % 97 == 1 ? interrupted : machine, 1);
  }
  EXPECT_EQ(chooser.kind(kBlock), Store::kTemporal);
}

TEST(StoreChooser, orders_of_magnitude_are_learned_separately) {
  StoreChooser chooser = chooser_of_machine();
  Machine small{.temporal_ns = 100, .non_temporal_ns = 300};
  Machine large{.temporal_ns = 90000, .non_temporal_ns = 30000};
  write(chooser, small, 50, 8 << 10);
  write(chooser, large, 50, 8 << 20);
  EXPECT_EQ(chooser.kind(8 << 10), Store::kTemporal);
  EXPECT_EQ(chooser.kind(8 << 20), Store::kNonTemporal);
}

TEST(StoreChooser, small_blocks_are_never_measured) {
  StoreChooser chooser([]() -> Clock::time_point {
    ADD_FAILURE() << "the clock was read";
    return {};
  });
  Machine machine;
  write(chooser, machine, 100, StoreChooser::kSmallest - 1);
  EXPECT_EQ(machine.written[0], 100);
}

}  // namespace
}  // namespace accord::exec
