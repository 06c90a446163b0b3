#pragma once
// Messages that the members of a group exchange, outside its operations, about the groups that they create among
// themselves.

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "accord/status.hpp"
#include "comm/membership/membership.hpp"

namespace accord::comm {

/// One rank's message about one group that is being created.
struct Announcement {
  enum class Kind : std::uint32_t {
    kJoining = 1,  ///< the sender is creating the group; `text` is what the others need to connect
    kGaveUp = 2,   ///< the sender has stopped; `reason`
    kRefused = 3   ///< the sender never will, because its request is invalid; `reason`
  };
  Kind kind = Kind::kJoining;
  std::uint64_t topic = 0;    ///< which group: a hash of its name
  std::uint64_t attempt = 0;  ///< the sender's number of this attempt
  std::uint64_t list = 0;     ///< a hash of the ranks that the group is to have
  std::string text = {};      ///< for kJoining
  Status reason = {};         ///< for the other kinds, with the ranks at fault as ranks of this group
};

/// The mailboxes of one rank: for each peer a ring of bytes in each window, written by put and signal, and the
/// announcements received through them. Only the used part costs memory. Thread-safe; several groups may be created
/// at the same time.
class Announcements {
 public:
  explicit Announcements(const Membership& members);

  /// Registers that a thread of this rank is creating the group of that topic and list. Returns false if another
  /// thread already is.
  bool begin(std::uint64_t topic, std::uint64_t list);
  void end(std::uint64_t topic, std::uint64_t list);
  /// Returns a number for an attempt of this rank, larger than all earlier ones.
  std::uint64_t next_attempt();
  /// Returns false if there is no room until `to` has collected earlier announcements. A kGaveUp for a posted
  /// announcement always has room; its text is shortened if necessary.
  bool post(Rank to, const Announcement& announcement);
  /// Marks one attempt that was posted to `to` as settled: it can no longer be given up.
  void settle(Rank to);

  /// Returns the last announcement of `from` on `topic`. Returns nullopt if there is none, or if `from` gave up
  /// before `since`, a time of now(). A mismatch or a refusal is returned in any case, since ranks that arrive later
  /// must see it.
  std::optional<Announcement> last_from(Rank from, std::uint64_t topic, std::uint64_t since);
  /// Collects from `ranks` and returns how many announcements have arrived so far.
  std::uint64_t now(std::span<const Rank> ranks);
  /// Settles what `from` announced in its attempt: later announcements of that attempt are ignored.
  void settle_received(Rank from, std::uint64_t topic, std::uint64_t attempt);

 private:
  struct Mailbox {
    std::uint64_t posted = 0;     ///< bytes that this rank has ever sent to the peer
    std::uint64_t open = 0;       ///< attempts that were announced to the peer and may still be given up
    std::uint64_t collected = 0;  ///< bytes that this rank has ever collected from the peer
  };
  struct Received {
    Announcement last;
    std::uint64_t when = 0;
  };

  // REQUIRES, for all of these: mutex_ is held.
  void collect(Rank from);
  void store(Rank from, Announcement announcement);
  void copy_out(Rank from, std::uint64_t position, std::span<std::byte> bytes) const;
  std::byte* mine(Rank peer, std::size_t offset) const;

  const Membership& members_;
  std::mutex mutex_;
  std::vector<Mailbox> mailboxes_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> being_created_;  ///< topic and list
  std::map<std::pair<Rank, std::uint64_t>, Received> received_;
  std::uint64_t attempts_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace accord::comm
