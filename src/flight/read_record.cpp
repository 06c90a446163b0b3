// Each slot is read under its stamp: if the stamp is the same before and after, and is not "being written", the
// fields belong together. A slot that changes all the time belongs to a quick operation; after several tries it is
// left out.
#include "flight/read_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.hpp"

namespace accord::flight {
namespace {

constexpr int kTries = 16;
constexpr std::uint64_t kMaxCapacity = std::uint64_t{1} << 20;
constexpr int kMaxRanks = 1 << 20;

std::uint64_t get(const std::uint64_t& place) { return word(place).load(std::memory_order_acquire); }

template <std::size_t n>
std::string text_of(const std::array<char, n>& text) {
  return std::string(text.data(), strnlen(text.data(), n));
}

/// A record whose size and capacity have been checked. They are copied, since the other process may write anything.
class Record {
 public:
  static Result<Record> open(std::span<const std::byte> bytes) {
    const Status none(StatusCode::kCorrupt, "it is not a flight record");
    if (bytes.size() < sizeof(RecordHeader)) return none;
    const auto& header = *reinterpret_cast<const RecordHeader*>(bytes.data());
    if (get(header.magic) != kRecordMagic) return none;
    const int size = header.size;
    const std::uint64_t capacity = header.capacity;
    if (size < 1 || size > kMaxRanks || !std::has_single_bit(capacity) || capacity > kMaxCapacity) return none;
    const RecordLayout layout = RecordLayout::of(static_cast<std::size_t>(size), capacity);
    if (layout.bytes > bytes.size()) return none;
    return Record(bytes, size, capacity, layout);
  }

  const RecordHeader& header() const { return at<RecordHeader>(0); }
  int size() const { return size_; }
  std::uint64_t capacity() const { return capacity_; }
  const RecordLayout& layout() const { return layout_; }
  bool in_use(std::size_t order) const {
    auto& flag = const_cast<std::uint8_t&>(at<std::uint8_t>(layout_.in_use + order));
    return std::atomic_ref<std::uint8_t>(flag).load(std::memory_order_acquire) != 0;
  }
  template <typename T>
  const T& at(std::size_t offset) const {
    return *reinterpret_cast<const T*>(bytes_.data() + offset);
  }

 private:
  Record(std::span<const std::byte> bytes, int size, std::uint64_t capacity, const RecordLayout& layout)
      : bytes_(bytes), size_(size), capacity_(capacity), layout_(layout) {}
  std::span<const std::byte> bytes_;
  int size_;
  std::uint64_t capacity_;
  RecordLayout layout_;
};

class Reader {
 public:
  Reader(const Record& record, const Timebase& time)
      : record_(record), header_(record.header()), start_(time.start), now_(moment_now(time.source)) {}

  FlightLog read() {
    FlightLog log;
    log.id = hex64(header_.id);
    log.name = text_of(header_.name);
    log.rank = std::clamp(header_.rank, 0, record_.size() - 1);
    log.host = text_of(header_.host);
    for (int r = 0; r < record_.size(); ++r) {
      const auto& peer =
          record_.at<RecordPeer>(record_.layout().peers + static_cast<std::size_t>(r) * sizeof(RecordPeer));
      log.peers.push_back({.process = peer.process, .host = peer.host});
    }
    log.state = static_cast<CommunicatorState>(std::min<std::uint64_t>(get(header_.state), 2));
    if (const std::uint64_t failed = get(header_.failed); failed != 0) log.failure = read_failure(failed);
    log.created_ns = time_of(header_.created);
    log.taken_ns = now_.monotonic_ns;
    log.taken_unix_ns = now_.unix_ns;
    const std::uint64_t count = std::min<std::uint64_t>(get(header_.algorithm_count), kMaxAlgorithms);
    for (std::uint64_t i = 0; i < count; ++i) algorithms_.push_back(text_of(header_.algorithms[i]));
    for (std::size_t order = 0; order < record_.layout().orders; ++order)
      if (record_.in_use(order)) log.orders.push_back(read_order(order));
    return log;
  }

 private:
  std::int64_t time_of(std::uint64_t ticks) const { return monotonic_of(ticks, start_, now_); }
  std::optional<std::int64_t> time_if(std::uint64_t ticks) const {
    return ticks == 0 ? std::nullopt : std::optional(time_of(ticks));
  }

  Failure read_failure(std::uint64_t failed) const {
    const auto count = std::min<std::size_t>(header_.failure_rank_count, header_.failure_ranks.size());
    return {
        .code = static_cast<StatusCode>(
            std::min<std::uint32_t>(header_.failure_code, static_cast<std::uint32_t>(StatusCode::kInternal))),
        .message = text_of(header_.failure),
        .ranks = {header_.failure_ranks.begin(), header_.failure_ranks.begin() + static_cast<std::ptrdiff_t>(count)},
        .at_ns = time_of(failed)};
  }

  Order read_order(std::size_t index) const {
    Order order;
    if (index > 0) {
      order.direction = index % 2 == 1 ? Direction::kSend : Direction::kReceive;
      order.peer = static_cast<Rank>((index - 1) / 2);
    }
    for (std::uint64_t i = 0; i < record_.capacity(); ++i)
      if (std::optional<Operation> operation = read_slot(record_.at<OperationSlot>(slot(index, i))))
        order.operations.push_back(std::move(*operation));
    std::sort(order.operations.begin(), order.operations.end(),
              [](const Operation& a, const Operation& b) { return a.number < b.number; });
    return order;
  }
  std::size_t slot(std::size_t order, std::uint64_t i) const {
    return record_.layout().slot(order, i, record_.capacity());
  }

  std::optional<Operation> read_slot(const OperationSlot& slot) const {
    for (int i = 0; i < kTries; ++i) {
      const std::uint64_t stamp = get(slot.stamp);
      if (stamp == 0) return std::nullopt;
      const auto state = static_cast<OperationState>(stamp & 0xff);
      const exec::RequestWords words = {get(slot.request[0]), get(slot.request[1]), get(slot.request[2])};
      const std::uint64_t started = get(slot.started), ended = get(slot.ended), queued = get(slot.queued),
                          algorithm_and_rank = get(slot.algorithm_and_rank);
      const std::uint64_t algorithm = algorithm_and_rank & UINT32_MAX, waits_for = algorithm_and_rank >> 32;
      if (state == OperationState::kBeingWritten || get(slot.stamp) != stamp) continue;
      const auto request = std::bit_cast<exec::RequestRecord>(words);
      if (to_string(state).empty() || static_cast<int>(request.collective) >= kCollectiveCount ||
          size_of(request.dtype) == 0 || static_cast<int>(request.op) >= kReduceOpCount ||
          request.phase > exec::Phase::kRegistered)
        return std::nullopt;
      Operation operation{.number = stamp >> 8, .state = state, .request = request, .algorithm = {}};
      if (algorithm >= 1 && algorithm <= algorithms_.size()) operation.algorithm = algorithms_[algorithm - 1];
      operation.queued_ns = time_if(queued);
      operation.started_ns = time_if(started);
      if (state == OperationState::kDone || state == OperationState::kFailed) operation.ended_ns = time_if(ended);
      if (waits_for >= 1 && waits_for <= static_cast<std::uint64_t>(record_.size()))
        operation.waits_for = static_cast<Rank>(waits_for - 1);
      return operation;
    }
    return std::nullopt;
  }

  const Record& record_;
  const RecordHeader& header_;
  Moment start_;
  Moment now_;
  std::vector<std::string> algorithms_;
};

Counters counters_of(const Record& record) {
  Counters counters;
  for (std::size_t order = 0; order < record.layout().orders; ++order) {
    if (!record.in_use(order)) continue;
    const auto& block = record.at<BlockHeader>(record.layout().block(order));
    counters.failures += get(block.failures);
    counters.waits += get(block.waits);
    counters.queued += get(block.queued);
    for (std::size_t c = 0; c < counters.by_collective.size(); ++c) {
      counters.by_collective[c].calls += get(block.calls_and_bytes[c][0]);
      counters.by_collective[c].bytes += get(block.calls_and_bytes[c][1]);
    }
  }
  return counters;
}

}  // namespace

Result<std::optional<FlightLog>> read_record(std::span<const std::byte> bytes, const Timebase& time) {
  ACCORD_ASSIGN_OR_RETURN(const Record record, Record::open(bytes));
  const std::uint64_t life = get(record.header().life);
  if (life % 2 == 0) return std::optional<FlightLog>();
  FlightLog log = Reader(record, time).read();
  log.counters = counters_of(record);
  if (get(record.header().life) != life) return std::optional<FlightLog>();
  return std::optional(std::move(log));
}

Counters read_counters(std::span<const std::byte> bytes) {
  const Result<Record> record = Record::open(bytes);
  return record.ok() ? counters_of(*record) : Counters();
}

}  // namespace accord::flight
