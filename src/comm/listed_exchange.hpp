#pragma once
// How some ranks of a group, without the others, tell each other what they need to make a group.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "comm/announcements.hpp"
#include "comm/exchange.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// A group that some ranks of another make.
struct Making {
  std::string_view call;      ///< by which they do: "split_ranks"; calls that differ never meet
  std::string name;           ///< of the new group
  std::vector<Rank> members;  ///< the ranks of the old one that call it, in an order that is equal on all of them
  std::string terms = {};     ///< what else has to be equal on all of them, in words
  Deadline deadline = Deadline::never();
};

/// One step between the members alone, beside the operations of `parent`, which stays as it is. All ranks in errors are those of
/// `parent`. REQUIRES: `parent` is kept open while it lives.
class ListedExchange {
 public:
  ListedExchange(Group& parent, Making making);
  ~ListedExchange();
  ListedExchange(const ListedExchange&) = delete;
  ListedExchange& operator=(const ListedExchange&) = delete;

  /// First: kWrongState if another thread of this rank is at the same group.
  Status begin() const;
  /// Tells all members `mine`, at most kMostText bytes; `take` gets the texts of all, with their places in the list. Once.
  Status operator()(const std::string& mine, const Take& take);
  /// After it: ok unless the parent has failed, or a member has given up since.
  Status look();
  /// All has been said: `failure` is why the group could not be made, if it could not. Those who wait for this rank are told.
  void end(const Status& failure);

 private:
  Rank me() const { return parent_.rank(); }
  std::string where() const;
  /// Its list and terms, as others are told.
  std::string wish() const;
  /// Until all members have been told and heard.
  Status meet();
  Status listen_to(std::size_t i);
  /// What the last word of `rank` means for this one.
  Status judge(Rank rank, const Announcement& theirs);
  void give_up(Rank to, const Status& reason);

  Group& parent_;
  Making making_;
  Announcement mine_;
  bool alone_;  ///< no other thread of this rank is at it
  std::uint64_t began_;
  std::vector<std::optional<Announcement>> heard_;  ///< by member
  std::vector<bool> told_;                          ///< by member
  Status reported_;                                 ///< what another member gave up for
};

/// Tells the other members, now or when they come, that this rank does not take part, and why. Ranks that there are not, or that are
/// named twice, may be among them.
void refuse(Group& parent, const Making& making, const Status& why);

}  // namespace accord::comm
