// Processes that watch each other.
#include "elastic/life_line.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "ranks/process_ranks.hpp"
#include "sanitized.hpp"

namespace accord::elastic {
namespace {

constexpr auto kLong = std::chrono::seconds(20);

Life settled(LifeWatch& watch, Life unsettled) {
  const Deadline deadline = Deadline::in(kLong);
  Life life = watch.look();
  while (life == unsettled && !deadline.passed()) life = watch.look();
  return life;
}

comm::Handle address_of(const LifeLine& line) { return *comm::parse_handle(line.address()); }

TEST(LifeLine, AnswersUntilItEnds) {
  std::unique_ptr<LifeLine> line = *LifeLine::open();
  LifeWatch watch(address_of(*line)), other(address_of(*line));
  EXPECT_EQ(settled(watch, Life::kUnknown), Life::kAlive);
  EXPECT_EQ(settled(other, Life::kUnknown), Life::kAlive);
  line.reset();
  EXPECT_EQ(settled(watch, Life::kAlive), Life::kGone);
  EXPECT_EQ(settled(other, Life::kAlive), Life::kGone);
}

TEST(LifeLine, AWatchThatBeginsAfterwardsIsRefused) {
  std::unique_ptr<LifeLine> line = *LifeLine::open();
  const comm::Handle address = address_of(*line);
  line.reset();
  LifeWatch watch(address);
  EXPECT_EQ(settled(watch, Life::kUnknown), Life::kGone);
}

TEST(LifeLine, AnotherProcessAtTheAddressDoesNotAnswer) {
  std::unique_ptr<LifeLine> line = *LifeLine::open();
  comm::Handle address = address_of(*line);
  address.key = std::string(address.key.size(), '0');
  LifeWatch watch(address);
  EXPECT_EQ(settled(watch, Life::kUnknown), Life::kGone);
}

TEST(LifeLine, EndsWithAKilledProcess) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "a forked process cannot start threads under ThreadSanitizer";
  std::array<int, 2> pipe = {};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  testing::ProcessRanks processes(1, [&](Rank) {
    const std::unique_ptr<LifeLine> line = *LifeLine::open();
    const std::string address = line->address();
    if (::write(pipe[1], address.data(), address.size()) != std::ssize(address)) return 1;
    pause();
    return 0;
  });
  ::close(pipe[1]);
  std::array<char, 1024> text = {};
  const ssize_t bytes = ::read(pipe[0], text.data(), text.size());
  ASSERT_GT(bytes, 0);
  LifeWatch watch(*comm::parse_handle(std::string_view(text.data(), static_cast<std::size_t>(bytes))));
  EXPECT_EQ(settled(watch, Life::kUnknown), Life::kAlive);
  processes.kill(0, SIGKILL);
  EXPECT_EQ(settled(watch, Life::kAlive), Life::kGone);
  ::close(pipe[0]);
}

}  // namespace
}  // namespace accord::elastic
