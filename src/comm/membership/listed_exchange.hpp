#pragma once
// Lets some ranks of a group, without the others, tell each other what they need to create a group.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "comm/group.hpp"
#include "comm/membership/announcements.hpp"
#include "comm/membership/exchange.hpp"

namespace accord::comm {

/// A group that some ranks of another group create.
struct GroupCreation {
  std::string_view call;      ///< name of the call: "split_ranks"; different calls never meet
  std::string name;           ///< of the new group
  std::vector<Rank> members;  ///< ranks of the old group that call it, in an order that is equal on all of them
  std::string terms = {};     ///< everything else that must be equal on all of them, as text
  Deadline deadline = Deadline::never();
};

/// One step between the members alone, separate from the operations of `parent`, which is left as it is. All ranks in
/// errors are those of `parent`. REQUIRES: `parent` is kept open while this object lives.
class ListedExchange {
 public:
  ListedExchange(Group& parent, GroupCreation creation);
  ~ListedExchange();
  ListedExchange(const ListedExchange&) = delete;
  ListedExchange& operator=(const ListedExchange&) = delete;

  /// Must be called first. kWrongState if another thread of this rank is creating the same group.
  Status begin() const;
  /// Sends `mine`, at most kMaxText bytes, to all members. `on_text` gets the texts of all, with their positions in the
  /// list. Called once.
  Status operator()(const std::string& mine, const OnText& on_text);
  /// For the time after that: ok unless the parent has failed, or a member has given up since.
  Status check();
  /// Ends the exchange. `failure` is why the group could not be created, or ok. Notifies the members that wait for
  /// this rank.
  void end(const Status& failure);

 private:
  Rank me() const { return parent_.rank(); }
  std::string where() const;
  /// Its list and terms, as shown to others.
  std::string requirements() const;
  /// Returns once this rank has posted to and heard from all members.
  Status exchange_announcements();
  Status receive_from(std::size_t i);
  /// Interprets the last announcement of `rank` for this rank.
  Status interpret(Rank rank, const Announcement& theirs);
  void give_up(Rank to, const Status& reason);

  Group& parent_;
  GroupCreation creation_;
  Announcement mine_;
  bool alone_;  ///< no other thread of this rank is creating it
  std::uint64_t began_;
  std::vector<std::optional<Announcement>> received_;  ///< by member
  std::vector<bool> posted_;                           ///< by member
  Status reported_;                                    ///< the reason for which another member gave up
};

/// Notifies the other members, at once or when they arrive, that this rank does not take part, and why. The members
/// may include ranks that do not exist or are listed twice.
void refuse(Group& parent, const GroupCreation& creation, const Status& why);

}  // namespace accord::comm
