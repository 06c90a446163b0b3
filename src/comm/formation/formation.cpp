// The ranks meet over TCP (meeting.hpp), exchange there what the ranks of any new group do (bootstrap.hpp), and then
// whether each of them has connected: the group is formed on all ranks or on none. If rank 0 dies while it says so,
// some ranks have the group; it fails there as soon as the others, which have an error, leave it.
#include "comm/formation/formation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/formation/meeting.hpp"
#include "comm/group.hpp"
#include "comm/membership/bootstrap.hpp"

namespace accord::comm {
namespace {

/// Returns the handles in rank order. kInvalidArgument names the text that is no handle, or is there twice.
Result<std::vector<Handle>> handles_in_order(std::span<const std::string> texts, RankOrder order,
                                             std::string_view where) {
  std::vector<std::string> sorted(texts.begin(), texts.end());
  std::sort(sorted.begin(), sorted.end());
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}", where, why));
  };
  if (sorted.empty()) return refuse("there are no handles");
  if (sorted.size() > static_cast<std::size_t>(kMaxRanks)) return refuse("there are too many handles");
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    return refuse(fmt::format("handle {} is there twice", quoted_text(*twice)));
  std::vector<Handle> handles;
  for (const std::string& text : order == RankOrder::kAny ? std::span<const std::string>(sorted) : texts) {
    Result<Handle> handle = parse_handle(text);
    if (!handle.ok()) return handle.status().with_context(where);
    handles.push_back(*std::move(handle));
  }
  return handles;
}

/// Connecting ends this much before the meeting, or a quarter of the time, so that the last round can still say why it
/// failed.
constexpr Duration kConfirmTime = std::chrono::seconds(1);

Deadline connect_deadline(const FormationMeeting& meeting) {
  const Duration left = meeting.deadline().remaining();
  return Deadline::in(left - std::min(kConfirmTime, left / 4));
}

/// The last round: whether all ranks have connected. Returns this rank's own failure, or else that of the first rank
/// with one.
Status confirm(FormationMeeting& meeting, const Status& mine, std::string_view where) {
  using Message = FormationMessage;
  const Status told(mine.code(), mine.message().substr(0, kMaxText / 2), mine.ranks());
  const std::string text = mine.ok() ? "" : encode(Message{.kind = Message::Kind::kFailed, .failure = told});
  const Status exchanged = meeting.exchange(text, [&](Rank from, const std::string& theirs) -> Status {
    if (!mine.ok()) return mine;
    if (theirs.empty()) return {};
    const Result<Message> message = decode_message(theirs);
    if (!message.ok()) return message.status();
    const Status& failure = message->failure;
    return Status(failure.code(), fmt::format("{}: rank {} could not connect: {}", where, from, failure.message()),
                  failure.ranks().empty() ? std::vector{from} : failure.ranks());
  });
  return exchanged.ok() || mine.ok() ? exchanged : mine;
}

}  // namespace

Result<std::shared_ptr<Group>> reconfigure(Group& group, std::string_view uuid, std::span<const std::string> handles,
                                           const ReconfigureOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const std::shared_lock<std::shared_mutex> open, group.keep_open("reconfigure"));
  const std::string where = fmt::format("reconfiguring group \"{}\"", group.options().name);
  ACCORD_ASSIGN_OR_RETURN(std::vector<Handle> members, handles_in_order(handles, options.order, where));
  ACCORD_ASSIGN_OR_RETURN(const std::string own_text, group.formation_point().handle());
  ACCORD_ASSIGN_OR_RETURN(const Handle own, parse_handle(own_text));
  const auto place = std::find(members.begin(), members.end(), own);
  if (place == members.end())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: the handles do not contain this rank's, {}", where, quoted_text(own_text, 200)));
  JoinRequest request{.rank = static_cast<Rank>(place - members.begin()),
                      .size = static_cast<int>(members.size()),
                      .options = group.options(),
                      .deadline = Deadline::in(options.timeout.value_or(group.options().timeout))};
  ACCORD_ASSIGN_OR_RETURN(HandleListener listener, group.formation_point().take(uuid, own, where));
  FormationMeeting meeting({.uuid = std::string(uuid),
                            .handles = std::move(members),
                            .rank = request.rank,
                            .deadline = request.deadline,
                            .check = [&]() -> Status {
                              return group.state().value() == CommunicatorState::kClosed ? group.state().status()
                                                                                         : Status();
                            },
                            .where = where},
                           std::move(listener));
  Result<std::shared_ptr<Group>> made =
      join(request, [&](std::string_view, const std::string& mine, const OnText& on_text) {
        Status exchanged = meeting.exchange(mine, on_text);
        request.deadline = connect_deadline(meeting);
        return exchanged;
      });
  ACCORD_RETURN_IF_ERROR(confirm(meeting, made.status(), where));
  meeting.finish();
  (*made)->formation_point().follow(group.formation_point());
  return made;
}

}  // namespace accord::comm
