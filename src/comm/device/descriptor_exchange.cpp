// Each rank that offers a descriptor listens at a Unix socket, whose name it sends in a collective of the group. All
// ranks then serve their guests and call on the others in turn, without blocking, so that none waits for another that
// waits for it.
#include "comm/device/descriptor_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "base/wait.hpp"
#include "comm/group.hpp"
#include "comm/membership/gather_texts.hpp"
#include "transport/shm/unix_socket.hpp"

namespace accord::comm {
namespace {

/// Time for all ranks to connect.
constexpr std::chrono::seconds kHandingOver(10);

std::array<std::byte, 1> greeting() { return {}; }

/// Checks that the other end may have the descriptor.
Status check_user(const UniqueFd& socket) {
  ACCORD_ASSIGN_OR_RETURN(const transport::SocketPeer peer, transport::peer_of(socket));
  if (transport::is_same_user(peer)) return {};
  return Status(StatusCode::kUnsupported, "a rank runs as another user, and GPU memory is not shared between users");
}

/// This rank's descriptor, on its way to the others.
class Offer {
 public:
  Offer(int descriptor, int guests) : descriptor_(descriptor), left_(guests) {}

  /// Returns the name at which it listens.
  Result<std::string> open() {
    ACCORD_ASSIGN_OR_RETURN(std::string name, transport::random_word());
    ACCORD_ASSIGN_OR_RETURN(listener_, transport::listen_at(name));
    return name;
  }
  /// Continues without blocking. Returns whether all guests have been served.
  Result<bool> serve() {
    if (left_ == 0) return true;
    ACCORD_ASSIGN_OR_RETURN(UniqueFd guest, transport::accept_from(listener_));
    if (guest.valid() && check_user(guest).ok()) guests_.push_back(std::move(guest));  // strangers are turned away
    for (UniqueFd& each : guests_) {
      ACCORD_ASSIGN_OR_RETURN(const transport::Exchange sent,
                              transport::send_descriptor(each, greeting(), descriptor_));
      if (sent == transport::Exchange::kLater) continue;
      each.reset();
      --left_;
    }
    std::erase_if(guests_, [](const UniqueFd& each) { return !each.valid(); });
    return left_ == 0;
  }

 private:
  const int descriptor_;
  int left_;
  UniqueFd listener_;
  std::vector<UniqueFd> guests_;
};

/// A descriptor on its way from another rank.
class Request {
 public:
  Request(Rank rank, std::string name) : rank_(rank), name_(std::move(name)) {}

  /// Continues without blocking. Returns whether `received` has the descriptor.
  Result<bool> receive(UniqueFd& received) {
    if (received.valid()) return true;
    if (!line_.valid()) {
      ACCORD_ASSIGN_OR_RETURN(line_, transport::connect_to(name_));
      if (!line_.valid()) return false;
      ACCORD_RETURN_IF_ERROR(check_user(line_));
    }
    auto packet = greeting();
    ACCORD_ASSIGN_OR_RETURN(transport::ReceivedDescriptor answer, transport::receive_descriptor(line_, packet));
    if (answer.exchange == transport::Exchange::kLater) return false;
    if (answer.exchange != transport::Exchange::kDone)
      return Status(StatusCode::kUnsupported, fmt::format("rank {} sent no descriptor of its memory", rank_), {rank_});
    received = std::move(answer.descriptor);
    return true;
  }
  Rank rank() const { return rank_; }

 private:
  const Rank rank_;
  const std::string name_;
  UniqueFd line_;
};

}  // namespace

Result<std::vector<UniqueFd>> exchange_descriptors(Group& group, const UniqueFd& mine, Deadline deadline) {
  std::optional<Offer> offer;
  Result<std::string> name = std::string();
  if (mine.valid()) name = offer.emplace(mine.get(), group.size() - 1).open();
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          gather_texts(group, name.ok() ? *name : std::string(), deadline.remaining()));
  ACCORD_RETURN_IF_ERROR(name.status());
  std::vector<UniqueFd> received(static_cast<std::size_t>(group.size()));
  std::vector<Request> requests;
  for (const Rank rank : group.topology().ranks())
    if (const std::string& its = names[static_cast<std::size_t>(rank)]; rank != group.rank() && !its.empty())
      requests.emplace_back(rank, its);

  // A rank that cannot connect reports that in the next collective.
  deadline = Deadline::in(std::min<Duration>(deadline.remaining(), kHandingOver));
  Waiter waiter(WaitPolicy::kYield);
  while (true) {
    bool is_done = true;
    if (offer) {
      ACCORD_ASSIGN_OR_RETURN(is_done, offer->serve());
    }
    std::vector<Rank> missing;
    for (Request& request : requests) {
      ACCORD_ASSIGN_OR_RETURN(const bool has, request.receive(received[static_cast<std::size_t>(request.rank())]));
      if (!has) missing.push_back(request.rank());
    }
    if (is_done && missing.empty()) return received;
    if (!group.state().healthy()) return group.state().status();
    if (deadline.passed())
      return Status(StatusCode::kUnsupported,  // like the error of the rank that cannot connect
                    missing.empty() ? std::string("a rank did not fetch the descriptor of this rank's memory")
                                    : fmt::format("{} did not send a descriptor in time", ranks_text(missing)),
                    missing);
    (void)waiter.pause();
  }
}

}  // namespace accord::comm
