// The members cannot use the parent's operations, whose order the other ranks would have to follow. Each member
// announces to each other one that it has arrived, with a hash of its list and what the others need to know. A member
// that has heard from all continues. Announcements are identified by the call and the name of the new group, so
// several groups can be created at the same time. A member that fails announces why, and the others end at once with
// that reason; they may try again.
#include "comm/membership/listed_exchange.hpp"

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

constexpr int kMaxListText = 256;
constexpr int kMaxTermsText = 512;

/// This rank's announcement of the group.
Announcement announcement_of(Group& parent, const GroupCreation& creation) {
  const std::string topic = fmt::format("{} {}", creation.call, creation.name);
  const std::string list = fmt::format("{} {}", creation.members, creation.terms);
  return {.topic = xxh3(std::as_bytes(std::span(topic))),
          .attempt = parent.announcements().next_attempt(),
          .list = xxh3(std::as_bytes(std::span(list)))};
}

}  // namespace

ListedExchange::ListedExchange(Group& parent, GroupCreation creation)
    : parent_(parent),
      creation_(std::move(creation)),
      mine_(announcement_of(parent, creation_)),
      alone_(parent.announcements().begin(mine_.topic, mine_.list)),
      began_(parent.announcements().now(creation_.members)),
      received_(creation_.members.size()),
      posted_(creation_.members.size(), false) {}

ListedExchange::~ListedExchange() {
  if (alone_) parent_.announcements().end(mine_.topic, mine_.list);
}

std::string ListedExchange::where() const {
  return fmt::format("creating group \"{}\" of {} of group \"{}\"", creation_.name, ranks_text(creation_.members),
                     parent_.options().name);
}

std::string ListedExchange::requirements() const {
  return fmt::format("{:.{}}, {:.{}}", fmt::format("{}", creation_.members), kMaxListText, creation_.terms,
                     kMaxTermsText);
}

Status ListedExchange::begin() const {
  if (alone_) return {};
  return Status(StatusCode::kWrongState,
                fmt::format("{}: another thread of this rank is already creating a group with "
                            "this name and list; groups that are created at the same time need different names",
                            where()));
}

Status ListedExchange::operator()(const std::string& mine, const OnText& on_text) {
  mine_.text = fmt::format("{}\n{}", requirements(), mine);
  ACCORD_RETURN_IF_ERROR(exchange_announcements());
  for (std::size_t i = 0; i < received_.size(); ++i) {
    const std::string& text = creation_.members[i] == me() ? mine_.text : received_[i]->text;
    ACCORD_RETURN_IF_ERROR(on_text(static_cast<Rank>(i), text.substr(text.find('\n') + 1)));
  }
  return {};
}

Status ListedExchange::check() {
  if (!parent_.state().healthy()) return parent_.state().examine_alarm(where());
  for (std::size_t i = 0; i < received_.size(); ++i) {
    if (!received_[i]) continue;
    // A new attempt by a rank that gave up is a separate matter.
    const std::optional<Announcement> last =
        parent_.announcements().last_from(creation_.members[i], mine_.topic, began_);
    if (last && last->attempt == received_[i]->attempt) ACCORD_RETURN_IF_ERROR(interpret(creation_.members[i], *last));
  }
  return {};
}

void ListedExchange::end(const Status& failure) {
  for (std::size_t i = 0; i < received_.size(); ++i) {
    const Rank member = creation_.members[i];
    if (member == me()) continue;
    if (received_[i]) parent_.announcements().settle_received(member, mine_.topic, received_[i]->attempt);
    if (!posted_[i]) continue;
    if (failure.ok()) {
      parent_.announcements().settle(member);
    } else {
      give_up(member, reported_.ok() ? failure : reported_);
    }
  }
}

Status ListedExchange::exchange_announcements() {
  const std::vector<Rank>& members = creation_.members;
  Waiter waiter(WaitPolicy::kYield);
  while (true) {
    if (!parent_.state().healthy()) return parent_.state().examine_alarm(where());
    std::vector<Rank> missing, gone;
    // Posts to all before it listens to any: a rank that fails because of what it hears can give its reason only to
    // those that it has posted to.
    for (std::size_t i = 0; i < members.size(); ++i)
      if (members[i] != me() && !posted_[i]) posted_[i] = parent_.announcements().post(members[i], mine_);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members[i] == me()) continue;
      // In this order, since a rank that has left may have announced why before.
      const bool left = parent_.state().peer(members[i]) == PeerState::kLeft;
      ACCORD_RETURN_IF_ERROR(receive_from(i));
      if (left && !received_[i]) gone.push_back(members[i]);
      if (!posted_[i] || !received_[i]) missing.push_back(members[i]);
    }
    if (missing.empty()) return {};
    // Checked again, since a rank that aborts the group reports that before it leaves.
    if (!gone.empty() && parent_.state().healthy())
      return Status(
          StatusCode::kPeerLost,
          fmt::format("{}: {} closed group \"{}\" before this call", where(), ranks_text(gone), parent_.options().name),
          gone);
    if (creation_.deadline.passed())
      return Status(StatusCode::kTimeout,
                    fmt::format("{}: {} did not call {} with this list and name in time", where(), ranks_text(missing),
                                creation_.call),
                    missing);
    waiter.pause();
  }
}

Status ListedExchange::receive_from(std::size_t i) {
  received_[i] = parent_.announcements().last_from(creation_.members[i], mine_.topic, began_);
  return received_[i] ? interpret(creation_.members[i], *received_[i]) : Status();
}

Status ListedExchange::interpret(Rank rank, const Announcement& theirs) {
  if (theirs.kind == Announcement::Kind::kJoining) {
    if (theirs.list == mine_.list) return {};
    const std::string wanted = theirs.text.substr(0, theirs.text.find('\n'));
    const bool same_list = wanted.substr(0, wanted.find(']')) == requirements().substr(0, requirements().find(']'));
    return Status(StatusCode::kMismatch,
                  fmt::format("{}: rank {} wants {}; this rank wants {}{}", where(), rank, wanted, requirements(),
                              same_list ? ""
                                        : "; groups that are created at the same time and have ranks in common need "
                                          "different names"),
                  {rank});
  }
  const std::string report = fmt::format("rank {} gave up: {}", rank, theirs.reason.message());
  if (theirs.kind == Announcement::Kind::kRefused) {
    reported_ = Status(StatusCode::kPeerLost, report, {rank});
    return reported_.with_context(where());
  }
  reported_ = theirs.reason;
  // The rank at fault may be this one.
  const std::vector<Rank>& at_fault = reported_.ranks();
  const bool known = !at_fault.empty() && at_fault != std::vector{me()} && theirs.list == mine_.list;
  return Status(reported_.code(), fmt::format("{}: {}", where(), report), known ? at_fault : std::vector<Rank>{rank});
}

void ListedExchange::give_up(Rank to, const Status& reason) {
  Announcement last = mine_;
  last.kind = Announcement::Kind::kGaveUp;
  last.reason = reason;
  (void)parent_.announcements().post(to, last);  // there is always room for it
}

void refuse(Group& parent, const GroupCreation& creation, const Status& why) {
  Announcement refused = announcement_of(parent, creation);
  refused.kind = Announcement::Kind::kRefused;
  refused.reason = why;
  for (const Rank member : std::set<Rank>(creation.members.begin(), creation.members.end()))
    if (member >= 0 && member < parent.size() && member != parent.rank())
      (void)parent.announcements().post(member, refused);
}

}  // namespace accord::comm
