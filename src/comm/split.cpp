// A split by color is collective: two all_gathers of the parent, the first of colors and keys, the second of what the ranks need
// to know of each other to connect (bootstrap.hpp).
//
// A split by ranks is between the listed ranks alone, so it cannot use the parent's operations, whose order the other
// ranks would have to follow. Each announces to each that it has come, with a hash of its list and what the others need
// to connect; who has heard all others connects. Announcements go by the name of the new group, so several can be in the
// making at once. Who fails says why, and the others end at once with that reason; the parent is left as it is and they
// may try again.
#include "comm/split.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "base/wait.hpp"
#include "comm/announcements.hpp"
#include "comm/bootstrap.hpp"

namespace accord::comm {
namespace {

using transport::PeerState;

/// The request of this rank to join the group of `members`, which are ranks of `parent`.
JoinRequest request_for(const Group& parent, std::span<const Rank> members, GroupOptions options) {
  const Deadline deadline = Deadline::in(options.timeout);
  return {.rank = static_cast<Rank>(std::find(members.begin(), members.end(), parent.rank()) - members.begin()),
          .size = static_cast<int>(members.size()),
          .options = std::move(options),
          .deadline = deadline};
}

topology::Topology topology_of(const Group& parent, std::span<const Rank> members) {
  std::vector<topology::Place> places;
  places.reserve(members.size());
  for (const Rank member : members) places.push_back(parent.topology().place(member));
  return topology::Topology(std::move(places));
}

/// An Exchange in which all ranks of the parent take part, each for the group that it will be in.
class ColorExchange {
 public:
  ColorExchange(Group& parent, std::vector<Rank> members, Deadline deadline)
      : parent_(parent), members_(std::move(members)), deadline_(deadline) {}

  Status operator()(std::string_view, const std::string& mine, const Take& take) {
    std::vector<std::uint8_t> text(kTextBytes, 0);
    std::copy(mine.begin(), mine.end(), text.begin());
    std::vector<std::uint8_t> all(kTextBytes * parent_.size());
    ACCORD_RETURN_IF_ERROR(parent_.run(Call::all_gather(ConstBuffer(text.data(), text.size(), DType::kUInt8),
                                                        Buffer{all.data(), all.size(), DType::kUInt8}),
                                       {.timeout = deadline_.remaining()}));
    for (Rank r = 0; r < static_cast<Rank>(members_.size()); ++r)
      ACCORD_RETURN_IF_ERROR(take(r, reinterpret_cast<const char*>(&all[members_[r] * kTextBytes])));
    return {};
  }

 private:
  static constexpr std::size_t kTextBytes = kMostText + 1;  // with the zero that ends it

  Group& parent_;
  std::vector<Rank> members_;
  Deadline deadline_;
};

/// An Exchange of one step between the listed ranks alone.
class ListedExchange {
 public:
  ListedExchange(Group& parent, std::span<const Rank> members, const JoinRequest& request)
      : parent_(parent),
        members_(members.begin(), members.end()),
        name_(request.options.name),
        deadline_(request.deadline),
        mine_{.topic = xxh3(std::as_bytes(std::span(name_))),
              .attempt = parent.announcements().next_attempt(),
              .list = xxh3(std::as_bytes(members))},
        began_(parent.announcements().now(members)),
        heard_(members.size()),
        told_(members.size(), false) {}

  Status operator()(std::string_view, const std::string& mine, const Take& take) {
    mine_.text = fmt::format("{:.{}}\n{}", fmt::format("{}", members_), kMostListText, mine);
    failure_ = meet();
    ACCORD_RETURN_IF_ERROR(failure_);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const std::string& text = members_[i] == me() ? mine_.text : heard_[i]->text;
      ACCORD_RETURN_IF_ERROR(take(static_cast<Rank>(i), text.substr(text.find('\n') + 1)));
    }
    return {};
  }

  /// All has been said: `failure`, with the new group's ranks, is why it could not be made. Gives it with the parent's.
  Status end(const Status& failure) {
    Status reason = failure_;
    if (reason.ok() && !failure.ok()) {
      std::vector<Rank> ranks = failure.ranks();
      for (Rank& rank : ranks) rank = members_[static_cast<std::size_t>(rank)];
      reason = Status(failure.code(), failure.message(), std::move(ranks));
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i] == me()) continue;
      if (heard_[i]) parent_.announcements().forget(members_[i], mine_.topic, heard_[i]->attempt);
      if (!reason.ok() && told_[i]) give_up(members_[i], reported_.ok() ? reason : reported_);
    }
    return reason;
  }

 private:
  static constexpr int kMostListText = 256;

  Rank me() const { return parent_.rank(); }
  std::string where() const {
    return fmt::format("creating group \"{}\" of {} of group \"{}\"", name_, ranks_text(members_),
                       parent_.options().name);
  }

  /// Until all members have been told and heard.
  Status meet() {
    Waiter waiter(WaitPolicy::kYield);
    while (true) {
      if (!parent_.healthy()) return parent_.examine_alarm(where());
      std::vector<Rank> missing, gone;
      // All are told before any is listened to: who fails for what it hears can tell why to those alone whom it has told.
      for (std::size_t i = 0; i < members_.size(); ++i)
        if (members_[i] != me() && !told_[i]) told_[i] = parent_.announcements().post(members_[i], mine_);
      for (std::size_t i = 0; i < members_.size(); ++i) {
        if (members_[i] == me()) continue;
        // In this order, as one that has left may have said why before.
        const bool left = parent_.peer_state(members_[i]) == PeerState::kLeft;
        ACCORD_RETURN_IF_ERROR(listen_to(i));
        if (left && !heard_[i]) gone.push_back(members_[i]);
        if (!told_[i] || !heard_[i]) missing.push_back(members_[i]);
      }
      if (missing.empty()) return {};
      // Looked at again, as one that aborts the group says so before it leaves.
      if (!gone.empty() && parent_.healthy())
        return Status(
            StatusCode::kPeerLost,
            fmt::format("{}: {} closed group \"{}\" before", where(), ranks_text(gone), parent_.options().name), gone);
      if (deadline_.passed())
        return Status(StatusCode::kTimeout,
                      fmt::format("{}: {} did not call split_ranks with this list and name in time", where(),
                                  ranks_text(missing)),
                      missing);
      waiter.pause();
    }
  }

  Status listen_to(std::size_t i) {
    const Rank rank = members_[i];
    heard_[i] = parent_.announcements().heard(rank, mine_.topic, began_);
    if (!heard_[i]) return {};
    const Announcement& theirs = *heard_[i];
    if (theirs.kind == Announcement::Kind::kGaveUp) {
      reported_ = theirs.reason;
      // The rank that it found fault with may be this one, whose list is another.
      const bool known = !reported_.ranks().empty() && theirs.list == mine_.list;
      return Status(reported_.code(), fmt::format("{}: rank {} gave up: {}", where(), rank, reported_.message()),
                    known ? reported_.ranks() : std::vector<Rank>{rank});
    }
    if (theirs.list == mine_.list) return {};
    return Status(StatusCode::kMismatch,
                  fmt::format("{}: rank {} lists {}, this rank {:.{}}; groups that are made at the same time and have "
                              "ranks in common need names of their own",
                              where(), rank, theirs.text.substr(0, theirs.text.find('\n')), fmt::format("{}", members_),
                              kMostListText),
                  {rank});
  }

  void give_up(Rank to, const Status& reason) {
    Announcement last = mine_;
    last.kind = Announcement::Kind::kGaveUp;
    last.reason = reason;
    (void)parent_.announcements().post(to, last);  // who has no room for it is not waiting for it
  }

  Group& parent_;
  std::vector<Rank> members_;
  std::string name_;
  Deadline deadline_;
  Announcement mine_;
  std::uint64_t began_;
  std::vector<std::optional<Announcement>> heard_;  ///< by member
  std::vector<bool> told_;                          ///< by member
  Status failure_;                                  ///< of the exchange, with the parent's ranks
  Status reported_;                                 ///< what another member gave up for
};

Status check_list(const Group& parent, std::span<const Rank> ranks, const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("creating group \"{}\" from group \"{}\": {}", name, parent.options().name, why));
  };
  std::set<Rank> seen;
  for (const Rank rank : ranks) {
    if (rank < 0 || rank >= parent.size())
      return refuse(fmt::format("the list names rank {}, there are {}", rank, ranks_text(parent.topology().ranks())));
    if (!seen.insert(rank).second) return refuse(fmt::format("the list names rank {} twice", rank));
  }
  if (!seen.contains(parent.rank()))
    return refuse(fmt::format("the list does not name rank {}, which calls; others need not call", parent.rank()));
  return {};
}

}  // namespace

Result<std::shared_ptr<Group>> split_by_color(Group& parent, int color, int key, GroupOptions options) {
  const int size = parent.size();
  ACCORD_RETURN_IF_ERROR(check({.rank = parent.rank(), .size = size, .options = options}));
  const std::int64_t mine[2] = {color, key};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size));
  const Deadline deadline = Deadline::in(options.timeout);
  ACCORD_RETURN_IF_ERROR(
      parent.run(Call::all_gather(ConstBuffer(mine, 2, DType::kInt64), Buffer{all.data(), all.size(), DType::kInt64}),
                 {.timeout = deadline.remaining()}));
  std::vector<Rank> members;
  for (Rank r = 0; r < size; ++r)
    if (color >= 0 && all[2 * r] == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](Rank a, Rank b) { return all[2 * a + 1] < all[2 * b + 1]; });
  ColorExchange exchange(parent, members, deadline);
  if (color < 0) {
    ACCORD_RETURN_IF_ERROR(exchange("address", "", {}));
    return std::shared_ptr<Group>();
  }
  return connect(request_for(parent, members, std::move(options)), topology_of(parent, members), exchange);
}

Result<std::shared_ptr<Group>> split_by_ranks(Group& parent, std::span<const Rank> ranks, GroupOptions options) {
  ACCORD_ASSIGN_OR_RETURN(const std::shared_lock<std::shared_mutex> open, parent.keep_open());
  if (ranks.empty()) return std::shared_ptr<Group>();
  ACCORD_RETURN_IF_ERROR(check_list(parent, ranks, options.name));
  const JoinRequest request = request_for(parent, ranks, std::move(options));
  ACCORD_RETURN_IF_ERROR(check(request));
  ListedExchange exchange(parent, ranks, request);
  Result<std::shared_ptr<Group>> made = connect(
      request, topology_of(parent, ranks),
      [&](std::string_view step, const std::string& mine, const Take& take) { return exchange(step, mine, take); });
  const Status failure = exchange.end(made.status());
  if (!failure.ok()) return failure;
  return made;
}

}  // namespace accord::comm
