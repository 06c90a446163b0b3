// Polls the channels from all ranks in turns, and takes in messages with other tags on the way. It owns a channel
// only while it looks at it, so receives from one rank continue meanwhile. It counts as a receive only once it has
// found its message.
#include "comm/receive_any.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/text.hpp"
#include "base/wait.hpp"

namespace accord::comm {
namespace {

class AnySource {
 public:
  AnySource(Group& group, std::vector<Rank> sources, std::vector<Channel*> channels, const Operation& operation)
      : group_(group), sources_(std::move(sources)), channels_(std::move(channels)), operation_(operation) {}

  Result<Rank> receive() {
    Waiter waiter(group_.wait_policy());
    const Deadline deadline = Deadline::in(operation_.timeout);
    bool long_wait = false;
    while (true) {
      if (!group_.state().healthy()) return group_.state().examine_alarm(where());
      const bool all_left = long_wait && have_all_left();  // read before the last look at their messages
      if (const std::optional<Result<Rank>> received = poll_all()) return *received;
      if (all_left && nothing_more_)
        return fail(StatusCode::kPeerLost, "closed the communicator, and no rank is left that could send a message");
      if (long_wait && deadline.passed())
        return fail(StatusCode::kTimeout, "sent no message in time; raise the timeout if they are only slow");
      if ((long_wait = waiter.pause())) operation_.timeout = deadline.remaining();
    }
  }

 private:
  std::string where() const {
    const Rank tag = operation_.record.root;
    return group_.where(tag == 0 ? "recv_any" : fmt::format("recv_any of tag {}", tag));
  }

  Status fail(StatusCode code, std::string_view why) const {
    return group_.state().fail({code, fmt::format("{}: {} {}", where(), ranks_text(sources_), why), sources_});
  }

  bool have_all_left() const {
    return std::all_of(sources_.begin(), sources_.end(),
                       [this](Rank source) { return group_.state().peer(source) == transport::PeerState::kLeft; });
  }

  std::optional<Result<Rank>> poll_all() {
    nothing_more_ = true;
    const std::lock_guard lock(group_.source_turns().mutex);
    const std::size_t first = group_.source_turns().next;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const std::size_t place = (first + i) % sources_.size();
      const Channel::ReceiveAttempt attempt = channels_[place]->try_receive(operation_);
      nothing_more_ = nothing_more_ && attempt.arrival == Arrival::kNo;
      if (attempt.arrival != Arrival::kYes) continue;
      if (!attempt.status.ok()) return attempt.status;
      group_.source_turns().next = place + 1;
      return sources_[place];
    }
    return std::nullopt;
  }

  Group& group_;
  const std::vector<Rank> sources_;
  const std::vector<Channel*> channels_;  ///< by index in sources_
  Operation operation_;
  bool nothing_more_ = false;  ///< at the last look every message that they had sent was taken in
};

}  // namespace

Result<Rank> receive_any(Group& group, Buffer buffer, std::int32_t tag, const CallOptions& options) {
  std::vector<Rank> sources;
  std::vector<Channel*> channels;
  for (const Rank source : group.topology().ranks()) {
    if (source == group.rank()) continue;
    ACCORD_ASSIGN_OR_RETURN(Channel* const channel, group.channel_for(Call::recv(buffer, source, tag)));
    sources.push_back(source);
    channels.push_back(channel);
  }
  if (sources.empty())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: there is no other rank to receive from", group.where("recv_any")));
  ACCORD_RETURN_IF_ERROR(check_may_wait());
  return group.with_operation(Call::recv(buffer, sources[0], tag), options, [&](const Operation& operation) {
    return AnySource(group, std::move(sources), std::move(channels), operation).receive();
  });
}

}  // namespace accord::comm
