#pragma once
// The members of a round and the progress of each: the state shared by all plans of one domain.

#include <algorithm>
#include <atomic>
#include <bit>
#include <complex>
#include <cstdint>
#include <string_view>
#include <vector>

#include "accord/buffer.hpp"
#include "exec/request_record.hpp"
#include "exec/window_layout.hpp"
#include "plan/plan.hpp"
#include "transport/transport.hpp"

namespace accord::exec {

/// Round number and history in 8 bytes: the round's low 40 bits, then 24 bits of a hash of the requests of this round
/// and all earlier ones, which is never zero. Flags, packets and completed words carry it, so the load that ends a
/// wait also detects a mismatch between ranks, even if neither rank waited in the round in which they differed.
inline std::uint64_t round_word(std::uint64_t round, std::uint32_t history) { return (round << 24) | history; }
/// The history after another request. Different histories remain different while the same requests follow.
constexpr std::uint32_t kNoHistory = 1;
constexpr std::uint32_t history_after(std::uint32_t history, std::uint32_t signature) {
  return (history * 0x5bd1e995 + 2 * signature) & 0xffffff;  // odd times odd plus even: odd
}
inline bool same_round(std::uint64_t a, std::uint64_t b) { return (a >> 24) == (b >> 24); }
/// 24 bits, never zero. `plan_name`, `plan_digest`: ranks that chose different plans, or different ones of that name,
/// also disagree. For a message the signature is even; that of a message with a tag is odd, so that a receive without
/// a tag never matches one.
std::uint32_t signature_of(const RequestRecord& record, std::string_view plan_name, std::uint64_t plan_digest = 0);
/// The signature of the same message with a tag, which is not 0.
constexpr std::uint32_t signature_with_tag(std::uint32_t signature, Rank tag) {
  return (signature ^ ((static_cast<std::uint32_t>(tag) * 0x9e3779b1) >> 8)) | 1;
}

/// Where the packets of a plan are stored.
enum class Packets : std::uint8_t { kLines, kCells };

/// A member whose window is not mapped here.
struct RemoteMember {
  transport::RemoteWriter* writer = nullptr;  ///< null: it is mapped
  std::size_t region = 0;                     ///< the domain's region in its window
  std::size_t mirror = 0;                     ///< where its window stores the head of this member's region
};

/// One domain as one member sees it. Used by one thread at a time.
/// Has a method for each word that members write or read, mostly of one line.
class Domain {
 public:
  /// `regions[m]`: the domain's region in the window of member m, mapped here; for a remote member the mirror of its
  /// head, in which it reports its rounds. `remotes`: by member; empty if there are none.
  Domain(const DomainLayout& layout, int me, std::vector<std::byte*> regions, std::vector<RemoteMember> remotes = {});

  bool has_remotes() const { return !remotes_.empty(); }
  bool is_remote(int m) const { return has_remotes() && remotes_[static_cast<std::size_t>(m)].writer != nullptr; }
  transport::RemoteWriter& writer(int m) const { return *remotes_[static_cast<std::size_t>(m)].writer; }
  /// lines() and slot() of remote member m as offsets in its window.
  std::size_t remote_lines(int m) const { return remotes_[m].region + lines_now_; }
  std::size_t remote_slot(int m) const { return remotes_[m].region + slots_[round_ % plan::kRoundDepth]; }
  /// Sends what was written to remote members. Notes about the round are sent with it, or by flush_notes().
  void flush_remotes();
  void flush_notes();
  /// Advances incoming and outgoing messages.
  void progress_remotes();

  int me() const { return me_; }
  int members() const { return layout_.members; }
  const DomainLayout& layout() const { return layout_; }
  /// The round that is running or ran last; the first one is 1.
  std::uint64_t round() const { return round_; }
  /// Hash of the requests of all rounds up to that one.
  std::uint32_t history() const { return history_; }
  /// The word carried by that round's flags and packets.
  std::uint64_t current_word() const { return round_word(round_, history_); }

  /// Begins the next round: publishes this member's request, and for premul_sum its factor.
  void begin_round(const RequestRecord& record, std::uint32_t signature, std::complex<double> factor = 1.0,
                   Packets packets = Packets::kLines) {
    ++round_;
    lines_now_ = packets == Packets::kCells ? DomainLayout::cells(round_) : lines_[round_ % kLineDepth];
    history_ = history_after(history_, signature);
    std::byte* line = regions_[me_] + DomainLayout::record(round_);
    write_record(line, record);
    if (record.op == ReduceOp::kPremulSum) write_factor(line, factor);
    word(line).store(current_word(), std::memory_order_release);
    if (has_remotes()) [[unlikely]]
      publish_begin(line);
  }
  /// The same for a message with a tag. `signature`: the signature without the tag.
  void begin_tagged_round(RequestRecord record, std::uint32_t signature, Rank tag, Packets packets) {
    record.root = tag;
    begin_round(record, signature_with_tag(signature, tag), 1.0, packets);
  }
  /// Cancels the running round, in which this member has sent nothing; the next round takes its place. `history`: the
  /// value before it.
  void cancel_round(std::uint32_t history) {
    word(regions_[me_] + DomainLayout::record(round_)).store(0, std::memory_order_relaxed);
    --round_;
    history_ = history;
  }
  /// Ends the round: its scratch, packets and flags may be reused. `depth`: number of rounds of its kind that may be
  /// in flight. If it is large, peers are notified only once in a while, since each notification moves the word's
  /// cache line back and forth. `reaches_all`: the plan waited for every peer, so each had begun this round and
  /// completed the previous one.
  void end_round(bool reaches_all, std::uint32_t depth) {
    const std::uint64_t publish_every = std::min(depth / 2, kLineDepth);  // a power of two
    if ((round_ & (publish_every - 1)) == 0) publish_completed(round_);
    if (reaches_all) all_completed_ = round_ - 1;
    if (has_remotes() && !reaches_all) [[unlikely]]
      publish_end();
  }
  /// True if the next round may begin: every member has completed the one `depth` rounds before it. Otherwise
  /// `laggard()` is the member that has not, or one that completed another request than this member; `differs()` is
  /// then true.
  bool gate_open(std::uint32_t depth) {
    if (depth < kLineDepth) publish_completed(round_);  // the others need it for the same gate
    return round_ + 1 <= all_completed_ + depth || check_completed(depth);
  }
  /// Publishes that this member has completed `round`, its last one or the one before.
  void publish_completed(std::uint64_t round) {
    if (published_ == round) return;
    const std::uint64_t its_word = word(regions_[me_] + DomainLayout::record(round)).load(std::memory_order_relaxed);
    word(regions_[me_] + DomainLayout::completed()).store(its_word, std::memory_order_release);
    published_ = round;
  }
  /// Reports that at `now` this member has long been waiting in the current round for member m; -1: no longer. Peers
  /// that wait for it can then see which member is the cause.
  void publish_waiting(int m, Clock::time_point now) {
    const std::uint64_t report = round_word(round_, static_cast<std::uint32_t>(m + 1));
    const auto ticks = static_cast<std::uint64_t>(now.time_since_epoch().count());
    word(regions_[me_] + DomainLayout::checked()).store(ticks, std::memory_order_relaxed);
    word(regions_[me_] + DomainLayout::waiting()).store(report, std::memory_order_relaxed);
  }
  /// Follows the chain of waits from member m in the current round, or in the previous one if a member is still in
  /// it, and returns the last member reached. A member that has reported no wait since `since` ends the chain: one
  /// that is stuck has not, and a remote one has another clock.
  int last_waited_for(int m, Clock::time_point since) const;
  int laggard() const { return laggard_; }
  bool differs() const { return differs_; }

  /// Member m's flags and packets of the current round, or its cells; and its scratch.
  std::byte* lines(int m) const { return regions_[m] + lines_now_; }
  std::byte* slot(int m) const { return regions_[m] + slots_[round_ % plan::kRoundDepth]; }

  /// Member m's own record of the round numbered `round`; false if it has not reached that round or is past it.
  bool record_of(int m, std::uint64_t round, std::uint64_t* its_word, RequestRecord* record) const;

  /// The factor of member m's input in the current round, whose op is premul_sum. REQUIRES: data or a signal that m
  /// sent in it has arrived, directly or through other members, or m is this member.
  std::complex<double> factor_of(int m) const {
    std::byte* line = regions_[m] + DomainLayout::record(round_);
    return {std::bit_cast<double>(word(line + 32).load(std::memory_order_relaxed)),
            std::bit_cast<double>(word(line + 40).load(std::memory_order_relaxed))};
  }

  static std::atomic_ref<std::uint64_t> word(std::byte* address) {
    return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(address));
  }

 private:
  bool check_completed(std::uint32_t depth);
  /// The member that m has reported since `since` to wait for; -1 if it has reported none, or is in the current round
  /// and reported it before.
  int reported_wait(int m, Clock::time_point since) const;
  void publish_begin(const std::byte* line);
  void publish_end();
  static void write_record(std::byte* line, const RequestRecord& record) {
    const auto words = std::bit_cast<RequestWords>(record);
    for (std::size_t i = 0; i < words.size(); ++i) word(line + 8 + 8 * i).store(words[i], std::memory_order_relaxed);
  }
  static void write_factor(std::byte* line, std::complex<double> factor) {
    word(line + 32).store(std::bit_cast<std::uint64_t>(factor.real()), std::memory_order_relaxed);
    word(line + 40).store(std::bit_cast<std::uint64_t>(factor.imag()), std::memory_order_relaxed);
  }

  DomainLayout layout_;
  int me_;
  std::vector<std::byte*> regions_;
  std::vector<RemoteMember> remotes_;
  std::array<std::size_t, kLineDepth> lines_;  ///< offsets from the layout
  std::array<std::size_t, plan::kRoundDepth> slots_;
  std::size_t lines_now_ = 0;  ///< of the current round
  std::uint64_t round_ = 0;
  std::uint64_t published_ = 0;  ///< the last round that peers know to be completed
  std::uint64_t all_completed_ = 0;
  int laggard_ = -1;
  std::uint32_t history_ = kNoHistory;
  bool differs_ = false;
};

}  // namespace accord::exec
