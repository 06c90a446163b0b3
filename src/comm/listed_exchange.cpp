// The members cannot use the parent's operations, whose order the other ranks would have to follow. Each member
// announces to each other one that it has arrived, with a hash of its list and what the others need to know. A member
// that has heard from all continues. Announcements are identified by the call and the name of the new group, so
// several groups can be created at the same time. A member that fails announces why, and the others end at once with
// that reason; they may try again.
#include "comm/listed_exchange.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "base/wait.hpp"

namespace accord::comm {
namespace {

using transport::PeerState;

constexpr int kMostListText = 256;
constexpr int kMostTermsText = 512;

/// This rank's announcement of the group.
Announcement announcement_of(Group& parent, const Making& making) {
  const std::string topic = fmt::format("{} {}", making.call, making.name);
  const std::string list = fmt::format("{} {}", making.members, making.terms);
  return {.topic = xxh3(std::as_bytes(std::span(topic))),
          .attempt = parent.announcements().next_attempt(),
          .list = xxh3(std::as_bytes(std::span(list)))};
}

}  // namespace

ListedExchange::ListedExchange(Group& parent, Making making)
    : parent_(parent),
      making_(std::move(making)),
      mine_(announcement_of(parent, making_)),
      alone_(parent.announcements().begin(mine_.topic, mine_.list)),
      began_(parent.announcements().now(making_.members)),
      heard_(making_.members.size()),
      told_(making_.members.size(), false) {}

ListedExchange::~ListedExchange() {
  if (alone_) parent_.announcements().end(mine_.topic, mine_.list);
}

std::string ListedExchange::where() const {
  return fmt::format("creating group \"{}\" of {} of group \"{}\"", making_.name, ranks_text(making_.members),
                     parent_.options().name);
}

std::string ListedExchange::wish() const {
  return fmt::format("{:.{}}, {:.{}}", fmt::format("{}", making_.members), kMostListText, making_.terms,
                     kMostTermsText);
}

Status ListedExchange::begin() const {
  if (alone_) return {};
  return Status(StatusCode::kWrongState,
                fmt::format("{}: another thread of this rank is making one of that name and list; groups that are made "
                            "at the same time need names of their own",
                            where()));
}

Status ListedExchange::operator()(const std::string& mine, const Take& take) {
  mine_.text = fmt::format("{}\n{}", wish(), mine);
  ACCORD_RETURN_IF_ERROR(meet());
  for (std::size_t i = 0; i < heard_.size(); ++i) {
    const std::string& text = making_.members[i] == me() ? mine_.text : heard_[i]->text;
    ACCORD_RETURN_IF_ERROR(take(static_cast<Rank>(i), text.substr(text.find('\n') + 1)));
  }
  return {};
}

Status ListedExchange::look() {
  if (!parent_.healthy()) return parent_.examine_alarm(where());
  for (std::size_t i = 0; i < heard_.size(); ++i) {
    if (!heard_[i]) continue;
    // A new attempt by a rank that gave up is a separate matter.
    const std::optional<Announcement> last = parent_.announcements().heard(making_.members[i], mine_.topic, began_);
    if (last && last->attempt == heard_[i]->attempt) ACCORD_RETURN_IF_ERROR(judge(making_.members[i], *last));
  }
  return {};
}

void ListedExchange::end(const Status& failure) {
  for (std::size_t i = 0; i < heard_.size(); ++i) {
    const Rank member = making_.members[i];
    if (member == me()) continue;
    if (heard_[i]) parent_.announcements().forget(member, mine_.topic, heard_[i]->attempt);
    if (!told_[i]) continue;
    if (failure.ok()) {
      parent_.announcements().settle(member);
    } else {
      give_up(member, reported_.ok() ? failure : reported_);
    }
  }
}

Status ListedExchange::meet() {
  const std::vector<Rank>& members = making_.members;
  Waiter waiter(WaitPolicy::kYield);
  while (true) {
    if (!parent_.healthy()) return parent_.examine_alarm(where());
    std::vector<Rank> missing, gone;
    // Posts to all before it listens to any: a rank that fails because of what it hears can give its reason only to
    // those that it has posted to.
    for (std::size_t i = 0; i < members.size(); ++i)
      if (members[i] != me() && !told_[i]) told_[i] = parent_.announcements().post(members[i], mine_);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == me()) continue;
      // In this order, since a rank that has left may have announced why before.
      const bool left = parent_.peer_state(members[i]) == PeerState::kLeft;
      ACCORD_RETURN_IF_ERROR(listen_to(i));
      if (left && !heard_[i]) gone.push_back(members[i]);
      if (!told_[i] || !heard_[i]) missing.push_back(members[i]);
    }
    if (missing.empty()) return {};
    // Checked again, since a rank that aborts the group reports that before it leaves.
    if (!gone.empty() && parent_.healthy())
      return Status(StatusCode::kPeerLost,
                    fmt::format("{}: {} closed group \"{}\" before", where(), ranks_text(gone), parent_.options().name),
                    gone);
    if (making_.deadline.passed())
      return Status(StatusCode::kTimeout,
                    fmt::format("{}: {} did not call {} with this list and name in time", where(), ranks_text(missing),
                                making_.call),
                    missing);
    waiter.pause();
  }
}

Status ListedExchange::listen_to(std::size_t i) {
  heard_[i] = parent_.announcements().heard(making_.members[i], mine_.topic, began_);
  return heard_[i] ? judge(making_.members[i], *heard_[i]) : Status();
}

Status ListedExchange::judge(Rank rank, const Announcement& theirs) {
  if (theirs.kind == Announcement::Kind::kCame) {
    if (theirs.list == mine_.list) return {};
    const std::string wanted = theirs.text.substr(0, theirs.text.find('\n'));
    const bool same_list = wanted.substr(0, wanted.find(']')) == wish().substr(0, wish().find(']'));
    return Status(StatusCode::kMismatch,
                  fmt::format("{}: rank {} wants {}; this rank wants {}{}", where(), rank, wanted, wish(),
                              same_list ? ""
                                        : "; groups that are made at the same time and have ranks in common need "
                                          "names of their own"),
                  {rank});
  }
  const std::string told = fmt::format("rank {} gave up: {}", rank, theirs.reason.message());
  if (theirs.kind == Announcement::Kind::kRefused) {
    reported_ = Status(StatusCode::kPeerLost, told, {rank});
    return reported_.with_context(where());
  }
  reported_ = theirs.reason;
  // The rank at fault may be this one.
  const std::vector<Rank>& at_fault = reported_.ranks();
  const bool known = !at_fault.empty() && at_fault != std::vector{me()} && theirs.list == mine_.list;
  return Status(reported_.code(), fmt::format("{}: {}", where(), told), known ? at_fault : std::vector<Rank>{rank});
}

void ListedExchange::give_up(Rank to, const Status& reason) {
  Announcement last = mine_;
  last.kind = Announcement::Kind::kGaveUp;
  last.reason = reason;
  (void)parent_.announcements().post(to, last);  // there is always room for it
}

void refuse(Group& parent, const Making& making, const Status& why) {
  Announcement refused = announcement_of(parent, making);
  refused.kind = Announcement::Kind::kRefused;
  refused.reason = why;
  for (const Rank member : std::set<Rank>(making.members.begin(), making.members.end()))
    if (member >= 0 && member < parent.size() && member != parent.rank())
      (void)parent.announcements().post(member, refused);
}

}  // namespace accord::comm
