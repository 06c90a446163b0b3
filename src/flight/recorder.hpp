#pragma once
// The flight recorder: the last operations of each communicator, stored where other threads and processes can read
// them.

#include <bit>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "accord/communicator.hpp"
#include "base/ticks.hpp"
#include "flight/flight_log.hpp"
#include "flight/format.hpp"
#include "topology/topology.hpp"

namespace accord::flight {

/// Describes a record's communicator.
struct Identity {
  std::uint64_t id = 0;
  std::string name;
  Rank rank = 0;
  topology::Topology topology;
};

/// Records one order of operations. Operations have the numbers 1, 2, ... and are written by the thread that runs
/// them; a queued operation is first written by the thread that queues it. Costs stores to one cache line, and a read
/// of the counter; never a lock, an allocation or a system call. A copy refers to the same order. Lives as long as
/// the Recorder.
class OrderRecorder {
 public:
  /// Whether an operation of that size is timed as a whole, even if it waits for nobody; then begin() is called
  /// before its work.
  static bool times(std::size_t bytes) { return bytes > kTimedBytes; }
  /// `bytes`: the size that is counted. `algorithm`: from Recorder::algorithm().
  void begin(std::uint64_t number, const exec::RequestRecord& request, std::size_t bytes, std::uint64_t algorithm) {
    slot_ = &slots_[number & mask_];
    stamp_ = number << 8;
    const bool was_queued = word(slot_->stamp).load(std::memory_order_relaxed) == stamp(OperationState::kQueued);
    set(slot_->stamp, stamp(OperationState::kBeingWritten));
    started_ = 0;
    write(*slot_, request, algorithm);
    if (!was_queued) set(slot_->queued, 0);
    // A long operation is timed as a whole. A quick one reads the clock first when it waits for others, if it does.
    if (times(bytes)) set(slot_->started, started_ = ticks_now(source_));
    set(slot_->stamp, stamp(OperationState::kRunning));
    auto& [calls, total] = block_->calls_and_bytes[static_cast<std::size_t>(request.collective)];
    add(calls, 1);
    add(total, bytes);
  }
  /// The running operation has to wait. Repeated calls are cheap.
  void waiting() {
    if (started_ == 0) set(slot_->started, started_ = ticks_now(source_));
  }
  /// It has waited long, for `rank` (-1 if unknown). `first`: whether this is the first time.
  void waiting_long(Rank rank, bool first) {
    const std::uint64_t algorithm = word(slot_->algorithm_and_rank).load(std::memory_order_relaxed) & UINT32_MAX;
    set(slot_->algorithm_and_rank, (static_cast<std::uint64_t>(rank + 1) << 32) | algorithm);
    if (first) add(block_->waits, 1);
  }
  /// It continues with another algorithm.
  void chose(std::uint64_t algorithm) { set(slot_->algorithm_and_rank, algorithm); }
  void end(bool ok) {
    const std::uint64_t now = ticks_now(source_);
    if (started_ == 0) set(slot_->started, now);
    set(slot_->ended, now);
    set(slot_->stamp, stamp(ok ? OperationState::kDone : OperationState::kFailed));
    if (!ok) add(block_->failures, 1);
  }

  /// Called before operation `number` begins; `before` others are ahead of it. Called in the order of the numbers, by
  /// one thread at a time.
  void queue(std::uint64_t number, std::uint64_t before, const exec::RequestRecord& request);
  /// A queued operation ended before it began.
  void drop(std::uint64_t number);
  /// An operation met a group that had already failed.
  void refuse(std::uint64_t number, const exec::RequestRecord& request);

 private:
  friend class Recorder;
  OrderRecorder(TickSource source, BlockHeader* block, OperationSlot* slots, std::uint64_t capacity)
      : source_(source), block_(block), slots_(slots), mask_(capacity - 1) {}

  static constexpr std::uint64_t kTimedBytes = 4096;

  std::uint64_t stamp(OperationState state) const { return stamp_ | static_cast<std::uint64_t>(state); }
  static void set(std::uint64_t& place, std::uint64_t value) { word(place).store(value, std::memory_order_release); }
  /// For words that only one thread at a time writes.
  static void add(std::uint64_t& place, std::uint64_t more) {
    word(place).store(word(place).load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  static void write(OperationSlot& slot, const exec::RequestRecord& request, std::uint64_t algorithm) {
    const auto words = std::bit_cast<exec::RequestWords>(request);
    for (std::size_t i = 0; i < words.size(); ++i) set(slot.request[i], words[i]);
    set(slot.started, 0);
    set(slot.ended, 0);
    set(slot.algorithm_and_rank, algorithm);
  }

  TickSource source_;
  BlockHeader* block_;
  OperationSlot* slots_;
  std::uint64_t mask_;
  OperationSlot* slot_ = nullptr;  // of the running operation, like the next two
  std::uint64_t stamp_ = 0;
  std::uint64_t started_ = 0;
};

/// The record of one communicator. Thread-safe, except as OrderRecorder says.
class Recorder {
 public:
  /// `capacity`: operations of each order, a power of two.
  static Result<std::unique_ptr<Recorder>> create(const Identity& identity, std::uint64_t capacity);
  ~Recorder();
  Recorder(const Recorder&) = delete;

  OrderRecorder collectives() { return order(0); }
  OrderRecorder messages(Rank peer, Direction direction) {
    return order(1 + 2 * static_cast<std::size_t>(peer) + (direction == Direction::kSend ? 0 : 1));
  }
  /// Returns the number by which operations refer to their algorithm; 0 once there are too many names.
  std::uint64_t algorithm(std::string_view name);
  /// REQUIRES: called under one lock, like set_state().
  void set_failure(const Status& failure);
  void set_state(CommunicatorState state);

  /// Returns the current contents. Cost: microseconds; milliseconds with a large capacity.
  FlightLog read() const;
  Counters counters() const;

 private:
  explicit Recorder(std::span<std::byte> bytes) : bytes_(bytes) {}
  RecordHeader& header() { return *reinterpret_cast<RecordHeader*>(bytes_.data()); }
  OrderRecorder order(std::size_t order);

  std::span<std::byte> bytes_;
  TickSource source_ = tick_source();
  std::mutex mutex_;  // for the names of algorithms
};

}  // namespace accord::flight
