// An entry is the call's number, its record, then its stream. The number is zero while the record is written: a reader
// that sees a word of the new record sees that zero, or a later number, when it reads the number again.
#include "comm/device/ledger.hpp"

#include <bit>

#include "exec/window_layout.hpp"

namespace accord::comm {
namespace {

constexpr std::uint64_t kEntries = 64;
constexpr std::size_t kEntryBytes = 40;
constexpr std::size_t kRecord = 8, kStream = 32;  // within an entry
constexpr std::size_t kLeft = 8, kCaptured = 16;
static_assert(kRecord + sizeof(exec::RequestWords) <= kStream);
static_assert(exec::WindowLayout::device_calls() + 64 + kEntries * kEntryBytes <= exec::WindowLayout::notice(0));

std::atomic_ref<std::uint64_t> word(std::byte* at) { return exec::Domain::word(at); }

}  // namespace

DeviceLedger::DeviceLedger(std::byte* window) : at_(window + exec::WindowLayout::device_calls()) {}

std::byte* DeviceLedger::entry_of(std::uint64_t number) const { return at_ + 64 + number % kEntries * kEntryBytes; }

void DeviceLedger::add(const exec::RequestRecord& record, std::uint64_t stream) {
  const std::uint64_t number = count() + 1;
  if (stream == 0) word(at_ + kCaptured).store(1, std::memory_order_release);
  std::byte* const entry = entry_of(number);
  word(entry).store(0, std::memory_order_relaxed);
  const auto words = std::bit_cast<exec::RequestWords>(record);
  for (std::size_t i = 0; i < words.size(); ++i)
    word(entry + kRecord + 8 * i).store(words[i], std::memory_order_release);
  word(entry + kStream).store(stream, std::memory_order_release);
  word(entry).store(number, std::memory_order_release);
  // In one order with leave(): of a rank that calls and one that leaves, at least one sees the other.
  word(at_).store(number, std::memory_order_seq_cst);
}

void DeviceLedger::leave() { word(at_ + kLeft).store(1, std::memory_order_seq_cst); }

std::uint64_t DeviceLedger::count() const { return word(at_).load(std::memory_order_seq_cst); }
bool DeviceLedger::has_left() const { return word(at_ + kLeft).load(std::memory_order_seq_cst) != 0; }
bool DeviceLedger::has_captured() const { return word(at_ + kCaptured).load(std::memory_order_acquire) != 0; }

std::optional<exec::RequestRecord> DeviceLedger::record_of(std::uint64_t number) const {
  std::byte* const entry = entry_of(number);
  if (word(entry).load(std::memory_order_acquire) != number) return std::nullopt;
  exec::RequestWords words = {};
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = word(entry + kRecord + 8 * i).load(std::memory_order_acquire);
  if (word(entry).load(std::memory_order_relaxed) != number) return std::nullopt;
  return std::bit_cast<exec::RequestRecord>(words);
}

std::uint64_t DeviceLedger::stream_of(std::uint64_t number) const {
  std::byte* const entry = entry_of(number);
  if (word(entry).load(std::memory_order_acquire) != number) return 0;
  const std::uint64_t stream = word(entry + kStream).load(std::memory_order_acquire);
  return word(entry).load(std::memory_order_relaxed) == number ? stream : 0;
}

}  // namespace accord::comm
