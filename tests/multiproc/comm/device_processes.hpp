#pragma once
// Ranks as processes, each with a device over host memory, which open each other's memory as needed.

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "conformance/comm/host_devices.hpp"
#include "ranks/open_descriptors.hpp"
#include "ranks/process_ranks.hpp"

namespace accord::testing {

/// Set before anything reads the environment. NVIDIA's NCCL would look for GPUs.
inline const bool kChosen = setenv("ACCORD_NCCL", library_path().c_str(), 1) == 0;

/// Exit codes of ranks: the outcome that they saw.
enum Seen : int { kFine = 0, kNamedTheDead = 10, kWrong = 11, kTooLate = 12 };

/// Memory that all ranks of a test share.
struct Board {
  std::atomic<int> ready = 0;
  std::atomic<int> done = 0;
  std::atomic<std::int64_t> killed_at_ns = 0;
};

/// A failed EXPECT of a rank appears in the test's output and makes the rank exit with kWrong. Each rank that exits
/// by itself must have released everything that it created.
class DeviceProcesses : public HostDevices {
 protected:
  using Body = std::function<int(Communicator&, const OnDevice&)>;

  DeviceProcesses()
      : board_(new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board) {}
  ~DeviceProcesses() override { munmap(board_, sizeof(Board)); }

  static CommunicatorOptions by_plans(Duration timeout = std::chrono::seconds(60)) {
    return {.timeout = timeout, .select = kByPlans, .hints = "max_ctas=2"};
  }

  void on_ranks(int size, const CommunicatorOptions& options,
                const std::function<void(Communicator&, const OnDevice&)>& body) {
    const auto run = [&](Communicator& comm, const OnDevice& on) {
      body(comm, on);
      return static_cast<int>(kFine);
    };
    EXPECT_THAT(exits_of(size, options, std::nullopt, run), ::testing::Each(static_cast<int>(kFine)));
  }

  /// Returns how the ranks end. `victim`, if any, is killed once board_->ready is `size`. A busy machine may keep a
  /// rank from running for a second, so after kTooLate the test has two more attempts; an error that is always late
  /// still fails.
  std::vector<int> exits_of(int size, const CommunicatorOptions& options, std::optional<Rank> victim,
                            const Body& body) {
    std::vector<int> codes;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const TemporaryDirectory meeting;
      board_->ready = 0;
      board_->done = 0;
      ProcessRanks ranks(size, [&](Rank rank) { return run_rank(rank, size, meeting.path(), options, body); });
      if (victim) {
        EXPECT_TRUE(is_soon([&] { return board_->ready.load() == size; }));
        board_->killed_at_ns = Duration(Clock::now().time_since_epoch()).count();
        ranks.kill(*victim, SIGKILL);
      }
      codes = ranks.wait_all(Deadline::in(std::chrono::seconds(60)));
      if (std::find(codes.begin(), codes.end(), kTooLate) == codes.end()) break;
    }
    return codes;
  }

  /// Returns the exit code of a rank whose call returned `status` after `dead` was killed, once everything in this
  /// rank's stream has ended.
  int judge(const Status& status, Rank dead, const OnDevice& on) const {
    on.synchronize();
    const Duration since = Clock::now().time_since_epoch() - Duration(board_->killed_at_ns.load());
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ::testing::ElementsAre(dead));
    EXPECT_THAT(status.message(), ::testing::HasSubstr("rank " + std::to_string(dead)));
    return since < std::chrono::seconds(1) ? kNamedTheDead : kTooLate;
  }

  static bool is_soon(const std::function<bool()>& condition) {
    const Deadline late = Deadline::in(std::chrono::seconds(20));
    while (!condition() && !late.passed()) std::this_thread::yield();
    return condition();
  }

  Board* board_;

 private:
  /// Returns the mappings of device memory, this rank's and other ranks'.
  static std::vector<std::string> mapped_memory() {
    std::vector<std::string> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      if (line.find("memfd:accord-test-device") != line.npos) found.push_back(line);
    return found;
  }

  static int run_rank(Rank rank, int size, const std::string& meeting, const CommunicatorOptions& options,
                      const Body& body) {
    // Creates the objects that all groups of a process share.
    { EXPECT_TRUE(Communicator::create(make_memory_store(), 0, 1)->barrier_async().wait().ok()); }
    const std::size_t before = open_descriptors();
    int seen = kWrong;
    {
      Result<Communicator> comm = Communicator::create(*make_file_store(meeting), rank, size, options);
      EXPECT_TRUE(comm.ok()) << comm.status().to_string();
      if (!comm.ok()) return kWrong;
      const Device device{DeviceType::kCuda, static_cast<std::int16_t>(rank / 2)};  // two ranks on each device
      const Stream stream = runtime().create_stream(device, false).value();
      seen = body(*comm, {runtime(), device, stream});
      comm->close();
      EXPECT_TRUE(runtime().destroy_stream(device, stream).ok());
    }
    EXPECT_TRUE(is_soon([] {
      comm::release_waiting();  // memory of this rank that another one has closed later
      return runtime().live() == LiveObjects{};
    }));
    runtime().join_destroyed_streams();
    EXPECT_TRUE(is_soon([&] { return open_descriptors() == before; })) << before << " at first";
    EXPECT_THAT(mapped_memory(), ::testing::IsEmpty());
    if (HasFailure()) std::printf("that was rank %d of %d\n", rank, size);
    return HasFailure() ? static_cast<int>(kWrong) : seen;
  }
};

}  // namespace accord::testing
