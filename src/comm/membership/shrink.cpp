// The collectives of a failed group cannot be used, and perhaps not its store either, whose host may be the rank that
// died. The windows and the peers' states remain usable. Each rank has a board in each peer's window, where it writes
//
//   its view   the ranks that it considers alive, one bit for each rank; bits are only ever cleared
//   notes      one for each attempt: the text that the others need to connect, and later that it has connected
//
// A rank clears the bits of ranks that have gone and of those that others have cleared, so all views shrink towards
// the same one. When all members of a view show it, they connect. A note is written once and carries the hash of the
// view that it is meant for, so none can be mistaken for one of another attempt. A rank that finds a member missing
// before it has connected clears that member, and all begin again. A rank that has connected waits until all others
// have connected, are dead, or begin again, in which case it follows. So no two ranks end with different groups. (A
// member that dies after it has connected is in the new group, which then fails and can be shrunk in turn.)
#include "comm/membership/shrink.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "base/wait.hpp"
#include "comm/membership/bootstrap.hpp"

namespace accord::comm {
namespace {

using exec::Domain;
using exec::kLine;
using exec::WindowLayout;
using transport::PeerState;

constexpr int kMaxAttempts = 8;
constexpr int kMaxShrunk = 4096;
constexpr Duration kShrinkNewsTimeout = std::chrono::seconds(5);

// Offsets on a board, and within a note.
constexpr std::size_t kPresent = 0;  ///< kHere once the view is written, and further flags
constexpr std::size_t kViewWords = kLine;
constexpr std::size_t kNotes = kViewWords + kMaxShrunk / 8;
constexpr std::size_t kTag = 0;  ///< which view the text is for; 0: none yet
constexpr std::size_t kConnected = 8;
constexpr std::size_t kLength = 16;
constexpr std::size_t kText = kLine;
constexpr std::size_t kNoteBytes = kText + kMaxText;
static_assert(kNotes + kMaxAttempts * kNoteBytes <= WindowLayout::kBoardBytes);

constexpr std::uint64_t kHere = 1;
constexpr std::uint64_t kDevicesShrink = 2;  ///< DeviceChannel::can_shrink()

/// One bit for each rank.
class View {
 public:
  explicit View(int size) : words_((static_cast<std::size_t>(size) + 63) / 64, 0) {
    for (Rank r = 0; r < size; ++r) words_[r / 64] |= bit(r);
  }
  bool has(Rank rank) const { return (words_[rank / 64] & bit(rank)) != 0; }
  void remove(Rank rank) { words_[rank / 64] &= ~bit(rank); }
  void keep_only(const View& others) {
    for (std::size_t w = 0; w < words_.size(); ++w) words_[w] &= others.words_[w];
  }
  std::vector<std::uint64_t>& words() { return words_; }
  std::uint64_t tag() const { return xxh3(std::as_bytes(std::span(words_))) | 1; }
  bool operator==(const View&) const = default;

 private:
  static std::uint64_t bit(Rank rank) { return std::uint64_t{1} << (rank % 64); }
  std::vector<std::uint64_t> words_;
};

class Survivors {
 public:
  Survivors(Group& group, std::string name, Duration timeout)
      : group_(group),
        name_(std::move(name)),
        arrival_(Deadline::in(timeout)),
        deadline_(Deadline::in(timeout + std::min(group.options().timeout, Duration::max() - timeout))),
        here_(kHere | (group.device_channel().can_shrink() ? kDevicesShrink : 0)),
        view_(group.size()) {}

  Result<std::shared_ptr<Group>> run() {
    publish();
    while (true) {
      ACCORD_RETURN_IF_ERROR(agree());
      members_.clear();
      for (const Rank r : group_.topology().ranks())
        if (view_.has(r)) members_.push_back(r);
      const View attempted = view_;
      Result<std::shared_ptr<Group>> made = connect_members();
      if (made.ok()) {
        ACCORD_ASSIGN_OR_RETURN(const bool all_have, confirm());
        if (all_have) {
          shrink_devices(**made);
          return made;
        }
      } else {
        if (made.status().code() == StatusCode::kPeerLost) await_other_view(attempted);
        if (view_ == attempted) return give_up(made.status());
      }
    }
  }

 private:
  Rank me() const { return group_.rank(); }
  std::size_t note(int attempt) const { return kNotes + static_cast<std::size_t>(attempt) * kNoteBytes; }

  /// Returns the record that `from` has written at `offset` of its board in this rank's window.
  std::byte* written(Rank from, std::size_t offset) const {
    const Membership& membership = group_.membership();
    return membership.endpoint->window().data() + membership.layout.board(from) + offset;
  }
  std::uint64_t word(Rank from, std::size_t offset) const {
    return Domain::word(written(from, offset)).load(std::memory_order_acquire);
  }

  // Errors are ignored: a peer that cannot be reached shows in its state.
  void write(Rank to, std::size_t offset, std::uint64_t value) const {
    (void)group_.links()[to]->signal(group_.membership().layout.board(me()) + offset, value);
  }
  void put(Rank to, std::size_t offset, std::span<const std::byte> bytes) const {
    (void)group_.links()[to]->put(bytes, group_.membership().layout.board(me()) + offset);
  }

  bool is_present(Rank rank) const { return word(rank, kPresent) != 0; }
  bool is_alive(Rank rank) const { return group_.state().peer(rank) == PeerState::kAlive; }
  View view_of(Rank rank) const {
    View theirs(group_.size());
    for (std::size_t w = 0; w < theirs.words().size(); ++w) theirs.words()[w] = word(rank, kViewWords + 8 * w);
    return theirs;
  }

  // Also writes to ranks that are not in the view, so that they learn of it.
  void publish() {
    for (const Rank r : group_.topology().ranks()) {
      if (r == me()) continue;
      for (std::size_t w = 0; w < view_.words().size(); ++w) write(r, kViewWords + 8 * w, view_.words()[w]);
      write(r, kPresent, here_);
    }
  }

  /// Leaves out ranks that have gone, and those that others have left out.
  void narrow() {
    const View before = view_;
    for (const Rank r : group_.topology().ranks()) {
      if (r == me() || !before.has(r)) continue;
      if (is_present(r)) view_.keep_only(view_of(r));
      if (!is_alive(r)) view_.remove(r);
    }
    if (view_ != before) publish();
  }

  /// Returns once all remaining ranks have the same view.
  Status agree() {
    Waiter waiter(WaitPolicy::kYield);
    while (true) {
      narrow();
      ACCORD_RETURN_IF_ERROR(check());
      std::vector<Rank> absent, behind;
      for (const Rank r : group_.topology().ranks()) {
        if (r == me() || !view_.has(r)) continue;
        if (!is_present(r)) {
          absent.push_back(r);
        } else if (view_of(r) != view_) {
          behind.push_back(r);
        }
      }
      if (absent.empty() && behind.empty()) return {};
      if (!absent.empty() && arrival_.passed()) {
        for (const Rank r : absent) view_.remove(r);
        publish();
      }
      if (deadline_.passed()) return give_up(timed_out(behind));
      waiter.pause();
    }
  }

  /// A peer that could not be connected to has died or begun again, which soon shows in its state or its view.
  void await_other_view(const View& attempted) {
    const Deadline soon = Deadline::in(std::min<Duration>(kShrinkNewsTimeout, deadline_.remaining()));
    Waiter waiter(WaitPolicy::kYield);
    do {
      narrow();
      waiter.pause();
    } while (view_ == attempted && !soon.passed());
  }

  /// Ok while this rank may continue.
  Status check() const {
    if (group_.state().value() == CommunicatorState::kClosed) return group_.state().status();
    if (view_.has(me())) return {};
    return Status(StatusCode::kAborted, fmt::format("{}: the other ranks continued without this one", where()), {me()});
  }

  Result<std::shared_ptr<Group>> connect_members() {
    std::vector<topology::Place> places;
    JoinRequest request{.size = static_cast<int>(members_.size()), .options = group_.options(), .deadline = deadline_};
    request.options.name = name_;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      places.push_back(group_.topology().place(members_[i]));
      if (members_[i] == me()) request.rank = static_cast<Rank>(i);
    }
    return connect(
        request, topology::Topology(std::move(places)),
        [this](std::string_view, const std::string& mine, const OnText& on_text) { return exchange(mine, on_text); });
  }

  Status exchange(const std::string& mine, const OnText& on_text) {
    if (attempts_ == kMaxAttempts)
      return Status(StatusCode::kResourceExhausted,
                    fmt::format("{}: ranks were lost {} times while the group was created", where(), attempts_));
    const std::size_t here = note(attempts_++);
    tag_ = view_.tag();
    const std::uint64_t length = mine.size();
    for (const Rank r : members_) {
      if (r == me()) continue;
      put(r, here + kLength, std::as_bytes(std::span(&length, 1)));
      put(r, here + kText, std::as_bytes(std::span(mine)));
      write(r, here + kTag, tag_);
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      std::string text = mine;
      if (members_[i] != me()) {
        ACCORD_ASSIGN_OR_RETURN(text, text_of(members_[i]));
      }
      ACCORD_RETURN_IF_ERROR(on_text(static_cast<Rank>(i), text));
    }
    return {};
  }

  /// Waits for the text of `rank` that this rank needs, for the view of this attempt.
  Result<std::string> text_of(Rank rank) {
    Waiter waiter(WaitPolicy::kYield);
    while (true) {
      for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
        const std::size_t there = note(attempt);
        if (word(rank, there + kTag) != tag_) continue;
        const std::size_t length = std::min<std::uint64_t>(word(rank, there + kLength), kMaxText);
        return std::string(reinterpret_cast<const char*>(written(rank, there + kText)), length);
      }
      narrow();
      ACCORD_RETURN_IF_ERROR(check());
      if (view_.tag() != tag_)
        return Status(StatusCode::kPeerLost, fmt::format("{}: a rank was lost while the group was created", where()));
      if (deadline_.passed()) return timed_out({rank});
      waiter.pause();
    }
  }

  bool has_connected(Rank rank) const {
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt)
      if (word(rank, note(attempt) + kConnected) == tag_) return true;
    return false;
  }

  /// Returns true once all members have connected or are dead, false if they begin again without some of them.
  Result<bool> confirm() {
    for (const Rank r : members_)
      if (r != me()) write(r, note(attempts_ - 1) + kConnected, tag_);
    Waiter waiter(WaitPolicy::kYield);
    while (true) {
      std::vector<Rank> not_yet;
      for (const Rank r : members_) {
        if (r == me() || has_connected(r) || !is_alive(r)) continue;
        not_yet.push_back(r);
        if (const View theirs = view_of(r); theirs != view_) {
          view_.keep_only(theirs);
          publish();
          return false;
        }
      }
      if (not_yet.empty()) return true;
      if (group_.state().value() == CommunicatorState::kClosed) return group_.state().status();
      if (deadline_.passed()) return give_up(timed_out(not_yet));
      waiter.pause();
    }
  }

  /// Connects the new group on GPUs if all its members are connected there.
  void shrink_devices(Group& made) {
    const auto can = [this](Rank rank) {
      return ((rank == me() ? here_ : word(rank, kPresent)) & kDevicesShrink) != 0;
    };
    std::vector<Rank> lost;
    for (const Rank r : group_.topology().ranks())
      if (!view_.has(r)) lost.push_back(r);
    if (!lost.empty() && std::all_of(members_.begin(), members_.end(), can))
      group_.device_channel().shrink(lost, made, Deadline::in(made.options().timeout));
  }

  /// Removes this rank from its view, so that the others need not wait for it.
  Status give_up(const Status& why) {
    view_.remove(me());
    publish();
    return why;
  }

  std::string where() const { return group_.where("shrink"); }
  Status timed_out(const std::vector<Rank>& missing) const {
    return Status(StatusCode::kTimeout,
                  fmt::format("{}: {} began but did not finish in time", where(), ranks_text(missing)), missing);
  }

  Group& group_;
  std::string name_;
  Deadline arrival_;
  Deadline deadline_;
  const std::uint64_t here_;
  View view_;
  std::vector<Rank> members_;  ///< of this attempt
  std::uint64_t tag_ = 0;      ///< of its view
  int attempts_ = 0;
};

}  // namespace

Result<std::shared_ptr<Group>> shrink(Group& group, std::string name, Duration timeout) {
  if (group.size() > kMaxShrunk)
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: only groups of up to {} ranks can be shrunk", group.where("shrink"), kMaxShrunk));
  ACCORD_ASSIGN_OR_RETURN(const std::shared_lock<std::shared_mutex> open, group.begin_shrink());
  return Survivors(group, std::move(name), timeout).run();
}

}  // namespace accord::comm
