#include "flight/recorder.hpp"

#include <algorithm>
#include <cstring>

#include "flight/read_record.hpp"
#include "flight/record_file.hpp"

namespace accord::flight {
namespace {

/// Copies as much of `text` as fits, with a terminating zero.
template <std::size_t n>
void copy_text(std::array<char, n>& to, std::string_view text) {
  to.fill('\0');
  text.copy(to.data(), n - 1);
}

}  // namespace

void OrderRecorder::queue(std::uint64_t number, std::uint64_t before, const exec::RequestRecord& request) {
  // Its slot belongs to an operation that has not ended. It is written when this one begins.
  if (before > mask_) return;
  OperationSlot& slot = slots_[number & mask_];
  set(slot.stamp, (number << 8) | static_cast<std::uint64_t>(OperationState::kBeingWritten));
  write(slot, request, 0);
  set(slot.queued, ticks_now(source_));
  set(slot.stamp, (number << 8) | static_cast<std::uint64_t>(OperationState::kQueued));
  add(block_->queued, 1);
}

void OrderRecorder::drop(std::uint64_t number) {
  OperationSlot& slot = slots_[number & mask_];
  const std::uint64_t stamp = number << 8;
  if (word(slot.stamp).load(std::memory_order_relaxed) != (stamp | static_cast<std::uint64_t>(OperationState::kQueued)))
    return;
  set(slot.ended, ticks_now(source_));
  set(slot.stamp, stamp | static_cast<std::uint64_t>(OperationState::kFailed));
  add(block_->failures, 1);
}

void OrderRecorder::refuse(std::uint64_t number, const exec::RequestRecord& request) {
  OperationSlot& slot = slots_[number & mask_];
  const std::uint64_t stamp = number << 8;
  if (word(slot.stamp).load(std::memory_order_relaxed) == (stamp | static_cast<std::uint64_t>(OperationState::kQueued)))
    return drop(number);
  set(slot.stamp, stamp | static_cast<std::uint64_t>(OperationState::kBeingWritten));
  write(slot, request, 0);
  set(slot.queued, 0);
  set(slot.ended, ticks_now(source_));
  set(slot.stamp, stamp | static_cast<std::uint64_t>(OperationState::kFailed));
  add(block_->failures, 1);
}

Result<std::unique_ptr<Recorder>> Recorder::create(const Identity& identity, std::uint64_t capacity) {
  const auto size = static_cast<std::size_t>(identity.topology.size());
  const RecordLayout layout = RecordLayout::of(size, capacity);
  ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, RecordFile::of_this_process().acquire(layout.bytes));
  std::unique_ptr<Recorder> recorder(new Recorder(bytes));
  RecordHeader& header = recorder->header();
  header.id = identity.id;
  header.rank = identity.rank;
  header.size = static_cast<std::int32_t>(size);
  header.capacity = capacity;
  header.created = ticks_now(recorder->source_);
  header.state = header.failed = header.algorithm_count = 0;
  copy_text(header.name, identity.name);
  copy_text(header.host, identity.topology.place(identity.rank).host);
  auto* peers = reinterpret_cast<RecordPeer*>(bytes.data() + layout.peers);
  for (const Rank r : identity.topology.ranks())
    peers[r] = {.process = identity.topology.place(r).process, .host = identity.topology.host_of(r)};
  word(header.life).fetch_add(1, std::memory_order_acq_rel);
  return recorder;
}

FlightLog Recorder::read() const {
  const Timebase time{.source = source_, .start = RecordFile::of_this_process().start()};
  return *std::move(read_record(bytes_, time)).value();  // a Recorder's own record is complete, and alive
}

Counters Recorder::counters() const { return read_counters(bytes_); }

Recorder::~Recorder() { RecordFile::of_this_process().release(bytes_); }

OrderRecorder Recorder::order(std::size_t order) {
  const RecordLayout layout = RecordLayout::of(static_cast<std::size_t>(header().size), header().capacity);
  auto& in_use = reinterpret_cast<std::uint8_t&>(bytes_[layout.in_use + order]);
  std::atomic_ref<std::uint8_t>(in_use).store(1, std::memory_order_release);
  return OrderRecorder(source_, reinterpret_cast<BlockHeader*>(bytes_.data() + layout.block(order)),
                       reinterpret_cast<OperationSlot*>(bytes_.data() + layout.slot(order, 0, header().capacity)),
                       header().capacity);
}

std::uint64_t Recorder::algorithm(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto cut = name.substr(0, sizeof(AlgorithmName) - 1);
  const std::uint64_t count = word(header().algorithm_count).load(std::memory_order_relaxed);
  for (std::uint64_t i = 0; i < count; ++i)
    if (std::string_view(header().algorithms[i].data()) == cut) return i + 1;
  if (count == kMaxAlgorithms) return 0;
  copy_text(header().algorithms[count], cut);
  word(header().algorithm_count).store(count + 1, std::memory_order_release);
  return count + 1;
}

void Recorder::set_failure(const Status& failure) {
  RecordHeader& to = header();
  if (word(to.failed).load(std::memory_order_relaxed) != 0) return;
  to.failure_code = static_cast<std::uint32_t>(failure.code());
  to.failure_rank_count =
      static_cast<std::uint32_t>(std::min<std::size_t>(failure.ranks().size(), to.failure_ranks.size()));
  std::copy_n(failure.ranks().begin(), to.failure_rank_count, to.failure_ranks.begin());
  copy_text(to.failure, failure.message());
  word(to.failed).store(ticks_now(source_), std::memory_order_release);
}

void Recorder::set_state(CommunicatorState state) {
  word(header().state).store(static_cast<std::uint64_t>(state), std::memory_order_release);
}

}  // namespace accord::flight
