// The gate keeps fast ranks from overwriting data that slow ones still read. Once a rank has heard from all peers in
// round k, it knows without asking that they have completed round k - 1. Only after plans in which it did not (a
// broadcast's root) does it check their completed words. Those also carry the history of requests: ranks that differ
// and never wait for each other, such as the roots of two broadcasts, are detected here.
#include "exec/domain.hpp"

namespace accord::exec {
namespace {

constexpr std::uint64_t kHistoryBits = 0xffffff;
constexpr std::size_t kRecordBytes = 48;  // word, record, factor

}  // namespace

std::uint32_t signature_of(const RequestRecord& record, std::string_view plan_name, std::uint64_t plan_digest) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: no table, no call into a library for a handful of bytes
  const auto mix = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  mix(static_cast<std::uint64_t>(record.collective));
  mix(static_cast<std::uint64_t>(record.dtype));
  mix(static_cast<std::uint64_t>(record.op));
  mix(static_cast<std::uint64_t>(record.phase));
  mix(static_cast<std::uint64_t>(record.root));
  for (const std::uint64_t value : {record.count, record.parts})
    for (int shift = 0; shift < 64; shift += 8) mix((value >> shift) & 0xff);
  for (const char letter : plan_name) mix(static_cast<unsigned char>(letter));
  if (plan_digest != 0) mix(plan_digest);
  const auto bits = static_cast<std::uint32_t>(hash ^ (hash >> 24) ^ (hash >> 48)) & 0xffffff;
  if (record.collective == Collective::kSendRecv) return std::max(bits & ~1U, 2U);
  return bits == 0 ? 1 : bits;
}

Domain::Domain(const DomainLayout& layout, int me, std::vector<std::byte*> regions, std::vector<RemoteMember> remotes)
    : layout_(layout), me_(me), regions_(std::move(regions)), remotes_(std::move(remotes)) {
  for (std::uint32_t round = 0; round < kLineDepth; ++round) lines_[round] = layout.lines(round);
  for (std::uint32_t round = 0; round < plan::kRoundDepth; ++round) slots_[round] = layout.slot(round);
}

// Sent with the first data of the round, so that a peer that finds its word can read what it is for.
void Domain::publish_begin(const std::byte* line) {
  const std::span<const std::byte> record(line + sizeof(std::uint64_t), kRecordBytes - sizeof(std::uint64_t));
  for (const RemoteMember& remote : remotes_) {
    if (remote.writer == nullptr) continue;
    const std::size_t there = remote.mirror + DomainLayout::record(round_);
    remote.writer->write_note(record, there + sizeof(std::uint64_t), current_word(), there);
  }
}

// Rounds in which all have heard from all need no report: peers only ask for them through a later round that is
// reported.
void Domain::publish_end() {
  for (const RemoteMember& remote : remotes_)
    if (remote.writer != nullptr) remote.writer->write_word(current_word(), remote.mirror + DomainLayout::completed());
}

void Domain::flush_remotes() {
  for (const RemoteMember& remote : remotes_)
    if (remote.writer != nullptr) remote.writer->flush();
}

void Domain::flush_notes() {
  for (const RemoteMember& remote : remotes_)
    if (remote.writer != nullptr) remote.writer->flush_notes();
}

void Domain::progress_remotes() {
  for (const RemoteMember& remote : remotes_) {
    if (remote.writer == nullptr) continue;
    remote.writer->progress();
    return;  // one worker serves all
  }
}

bool Domain::check_completed(std::uint32_t depth) {
  std::int64_t most_behind = 0;
  for (int m = 0; m < members(); ++m) {
    if (m == me_) continue;
    const std::uint64_t its_word = word(regions_[m] + DomainLayout::completed()).load(std::memory_order_acquire);
    // The difference of the rounds is also correct beyond 2^40 rounds.
    const auto behind = static_cast<std::int64_t>(round_word(round_, 0) - (its_word & ~kHistoryBits)) >> 24;
    if (behind > most_behind) {
      most_behind = behind;
      laggard_ = m;
    }
    const std::uint64_t mine =
        word(regions_[me_] + DomainLayout::record(round_ - behind)).load(std::memory_order_relaxed);
    if (same_round(mine, its_word) && mine != its_word) {
      laggard_ = m;
      differs_ = true;
      return false;
    }
  }
  all_completed_ = round_ - most_behind;
  return round_ + 1 <= all_completed_ + depth;
}

int Domain::last_waited_for(int m, Clock::time_point since) const {
  for (int hops = 0; hops < members(); ++hops) {
    const int next = reported_wait(m, since);
    if (next < 0 || next >= members() || next == me_) return m;
    m = next;
  }
  return m;
}

int Domain::reported_wait(int m, Clock::time_point since) const {
  const std::uint64_t reported = word(regions_[m] + DomainLayout::waiting()).load(std::memory_order_relaxed);
  const std::uint64_t checked = word(regions_[m] + DomainLayout::checked()).load(std::memory_order_relaxed);
  if (Clock::time_point(Clock::duration(static_cast<Clock::rep>(checked))) < since) return -1;
  std::uint64_t its_word = 0;
  RequestRecord record;
  if (!same_round(reported, round_word(round_, 0)) && record_of(m, round_, &its_word, &record)) return -1;
  return static_cast<int>(reported & kHistoryBits) - 1;
}

bool Domain::record_of(int m, std::uint64_t round, std::uint64_t* its_word, RequestRecord* record) const {
  std::byte* line = regions_[m] + DomainLayout::record(round);
  *its_word = word(line).load(std::memory_order_acquire);
  if (!same_round(*its_word, round_word(round, 0))) return false;
  RequestWords words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(line + 8 + 8 * i).load(std::memory_order_acquire);
  *record = std::bit_cast<RequestRecord>(words);
  return word(line).load(std::memory_order_acquire) == *its_word;
}

}  // namespace accord::exec
