#pragma once
// What the members of a group tell each other, beside its operations, of the groups that they make among themselves.

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
#include "comm/membership.hpp"

namespace accord::comm {

/// One rank's word about one group in the making.
struct Announcement {
  enum class Kind : std::uint32_t {
    kCame = 1,    ///< it is making the group; `text` is what the others need to connect
    kGaveUp = 2,  ///< it no longer is; `reason`
    kRefused = 3  ///< it never will be: its request makes no sense; `reason`
  };
  Kind kind = Kind::kCame;
  std::uint64_t topic = 0;    ///< which group: a hash of its name
  std::uint64_t attempt = 0;  ///< the sender's number of this attempt
  std::uint64_t list = 0;     ///< a hash of the ranks that it is to have
  std::string text = {};      ///< of kCame
  Status reason = {};         ///< of the others, with the ranks at fault as ranks of this group
};

/// The mailboxes of one rank: a ring of bytes in each window for each peer, written by put and signal, and what has come through
/// them. Only what is used of it costs memory. Thread-safe; several groups may be in the making at once.
class Announcements {
 public:
  explicit Announcements(const Membership& members);

  /// That a thread of this rank makes the group of that topic and list; false if another one does so already.
  bool begin(std::uint64_t topic, std::uint64_t list);
  void end(std::uint64_t topic, std::uint64_t list);
  /// The number of an attempt of this rank's: larger than all before.
  std::uint64_t next_attempt();
  /// False if there is no room until `to` has collected what came before. There is always room to give up what was posted, if need be
  /// in few words.
  bool post(Rank to, const Announcement& announcement);
  /// Of what was posted to `to` nothing is left to give up.
  void settle(Rank to);

  /// The last word of `from` on `topic`; nullopt if it has none, or gave up before `since`, a time of now(), unless that was for a
  /// mismatch or a refusal, which who comes later has to know too.
  std::optional<Announcement> heard(Rank from, std::uint64_t topic, std::uint64_t since);
  /// Counts what has come, from `ranks` until now.
  std::uint64_t now(std::span<const Rank> ranks);
  /// What `from` said in its attempt is settled: later words of the same one are ignored.
  void forget(Rank from, std::uint64_t topic, std::uint64_t attempt);

 private:
  struct Mailbox {
    std::uint64_t posted = 0;  ///< bytes that this rank has ever sent to the peer
    std::uint64_t open = 0;    ///< attempts that it was told of and that may still be given up
    std::uint64_t taken = 0;   ///< bytes that it has ever taken of what the peer sent
  };
  struct Heard {
    Announcement last;
    std::uint64_t when = 0;
  };

  // REQUIRES, for all of these: mutex_ is held.
  void collect(Rank from);
  void take(Rank from, Announcement announcement);
  void copy_out(Rank from, std::uint64_t position, std::span<std::byte> bytes) const;
  std::byte* mine(Rank peer, std::size_t offset) const;

  const Membership& members_;
  std::mutex mutex_;
  std::vector<Mailbox> mailboxes_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> in_the_making_;  ///< topic and list
  std::map<std::pair<Rank, std::uint64_t>, Heard> heard_;
  std::uint64_t attempts_ = 0;
  std::uint64_t came_ = 0;
};

}  // namespace accord::comm
