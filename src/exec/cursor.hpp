#pragma once
// Runs a lowered plan: a position in it that can be polled and resumed. Nothing here blocks.

#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "exec/domain.hpp"
#include "exec/lowered.hpp"
#include "exec/placement.hpp"
#include "exec/store_chooser.hpp"

namespace accord::exec {

enum class Progress : std::uint8_t {
  kDone,
  kPending,   ///< waits for waiting_for()
  kMismatch,  ///< waiting_for() runs this round, or ran an earlier one, for another request
};

/// How many times a single lane checks for an event before poll() reports it as pending, as long as the lane waits
/// for at most `missing` signals and packets. A check costs a tenth of a poll.
struct PollLimits {
  std::uint32_t checks = 1;
  int missing = std::numeric_limits<int>::max();
};

/// One execution of one plan on one domain. Reusable: start() again after kDone. Allocates only if a plan is larger
/// than all previous ones.
/// Keeps the place of the running step in fields of its own, so that a poll reads few cache lines.
class Cursor {
 public:
  /// Begins `plan` on `domain`; both must outlive the execution, as must the buffers. No other execution may be in
  /// progress on the domain. `factor`: multiplies this rank's input if the op is premul_sum. `placement`: for plans
  /// whose buffers are in windows; must outlive the execution. `tag`: the tag of a message.
  void start(Domain& domain, const LoweredPlan& plan, const void* input, void* output,
             std::complex<double> factor = 1.0, const Placement& placement = kNoPlacement, Rank tag = 0);
  /// Proceeds as far as possible.
  Progress poll(PollLimits limits = {});

  /// The member that it waits for; -1 if unknown.
  int waiting_for() const { return waiting_for_; }
  /// Grows whenever poll() makes progress: distinguishes a long operation from a stuck one.
  std::uint64_t position() const { return position_; }
  /// True while it waits to begin a round: the domain's last round belonged to another request, or to an earlier
  /// slice.
  bool at_gate() const { return !in_round_; }
  /// After kMismatch: the number of the window that contains the buffers of waiting_for() and that this rank does not
  /// have; -1 for any other cause.
  int unknown_window() const { return unknown_window_; }
  /// After kMismatch: the errno with which reading the memory of waiting_for() failed; 0 for any other cause.
  int read_error() const { return read_error_; }
  const LoweredPlan& plan() const { return *plan_; }
  Domain& domain() const { return *domain_; }

 private:
  struct LaneState {
    std::uint32_t next = 0;  ///< index of the next step
    std::uint64_t line = 0;  ///< packet line within it, or byte of data for a remote member
    bool at_barrier = false;
  };
  /// For `plan` on `domain`, if the current room was made for another pair.
  void make_room(Domain& domain, const LoweredPlan& plan);
  void begin_round();
  Progress poll_lane(std::size_t index);
  Progress run_packets(const LoweredStep& step, LaneState& state);
  Progress run_remote(const LoweredStep& step, LaneState& state);
  void put_packets_remote(const LoweredStep& step, std::size_t offset, transport::RemoteWriter& writer);
  Progress wait_for_remotes(Progress progress);
  Progress copy_from_peer(const LoweredStep& step);
  void copy(const Operand& destination, const std::byte* source, std::size_t bytes);
  void reduce(const LoweredStep& step, std::uint64_t count);
  void write_twice(const LoweredStep& step, std::uint64_t count, kernels::Store store);
  void reduce_partials(const LoweredStep& step, std::uint64_t count);
  void run_kernel(void* destination, void* mirror, std::uint16_t sources, std::uint64_t count);
  bool barrier_passed(const LoweredStep& step, LaneState& state);
  bool word_arrived(std::byte* address, int from);
  /// Reduces the number of checks to one if the lane, from step `next` on, waits for more missing signals and packets
  /// than limits_ permits.
  void limit_checks(const std::vector<LoweredStep>& steps, std::size_t next);
  int missing_in(const LoweredStep& step) const;
  void publish_places(std::byte* flag_line) const;
  bool read_places(std::byte* flag_line, int from);
  std::uint64_t elements(const LoweredStep& step) const;
  std::byte* address(const Operand& operand) const { return bases_[operand.base] + operand.offset; }

  Domain* domain_ = nullptr;
  const LoweredPlan* plan_ = nullptr;
  std::uint64_t plan_number_ = 0;  ///< of the plan that there is room for
  std::vector<std::byte*> bases_;
  std::vector<const void*> sources_;
  std::vector<std::complex<double>> factors_;  ///< of the sources, for premul_sum
  std::complex<double> factor_ = 1.0;
  Rank tag_ = 0;
  std::vector<LaneState> lanes_;
  std::vector<std::uint32_t> barrier_arrivals_;
  StoreChooser stores_;
  std::unique_ptr<StoreChooser> sum_stores_;  ///< for sums stored in a peer's buffer
  const Placement* placement_ = nullptr;
  int unknown_window_ = -1;
  int read_error_ = 0;
  PartialSums partial_sums_;
  std::vector<PartialOperand> partial_sources_;
  std::uint64_t rounds_done_ = 0;
  std::uint64_t elements_done_ = 0;  ///< of each chunk, in earlier rounds
  std::uint64_t word_ = 0;           ///< carried by flags and packets of this round
  std::uint64_t position_ = 0;
  PollLimits limits_;
  int waiting_for_ = -1;
  bool in_round_ = false;
  bool mismatch_ = false;
};

}  // namespace accord::exec
