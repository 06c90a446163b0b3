// Opening takes four steps, each an all_gather of the group or the transport's own: exchange sizes and numbers;
// exchange descriptors of the new endpoints, or the reason why there is none; connect; exchange the results, so that
// the window exists on all ranks or on none. Connecting ends some time before the timeout, so that a rank that waited
// in vain for a connection can still say so. Endpoints of a transport have windows of one size, so each is as large as
// the largest contribution; pages that are never touched cost nothing.
//
// Signals are counted, not stored one by one: line r of a rank's window holds the number of signals that rank r has
// sent, and only rank r writes it. The receiving rank remembers how many of them its waits took.
//
// Between hosts a put sends its bytes in pieces, and a get asks for pieces, so at most a few MiB are pending for a
// peer that does not run.
#include "comm/window/shared_window.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/interruption.hpp"
#include "base/rounding.hpp"
#include "base/text.hpp"
#include "base/wait.hpp"
#include "comm/call.hpp"
#include "comm/group.hpp"
#include "comm/membership/gather_texts.hpp"
#include "exec/domain.hpp"

namespace accord::comm {
namespace {

using exec::Domain;
using transport::Link;
using transport::PeerState;

/// Bytes of a put or get between hosts that are in flight together.
constexpr std::size_t kPutPiece = std::size_t{1} << 20;
constexpr std::size_t kGetPiece = std::size_t{4} << 20;
/// More than any machine maps, and small enough to add to.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 46;
/// Connecting ends this much before the timeout, or a quarter of the time that is left.
constexpr Duration kResultsTime = std::chrono::seconds(1);

/// Offset of the counter for signals of `from`.
std::size_t counter(Rank from) { return to_size(from) * exec::kLine; }
/// Offset of the user's memory.
std::size_t first_byte(int size) { return (counter(size) + exec::kPage - 1) / exec::kPage * exec::kPage; }

/// The steps that open a window.
class Opening {
 public:
  Opening(Group& group, Duration timeout) : group_(group), deadline_(Deadline::in(timeout)) {}

  /// Returns what each rank contributes, and sets number.
  Result<std::vector<std::uint64_t>> agree(std::uint64_t bytes) {
    const std::uint64_t mine[2] = {bytes, static_cast<std::uint64_t>(group_.windows().next_number())};
    ACCORD_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> all, gather<std::uint64_t>(mine));
    std::vector<std::uint64_t> sizes;
    for (Rank r = 0; r < group_.size(); ++r) {
      sizes.push_back(all[2 * to_size(r)]);
      number = std::max(number, static_cast<int>(all[2 * to_size(r) + 1]));
      if (sizes.back() > kMaxBytes)
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("{}: rank {} requests {}, which is too much", where(), r, bytes_text(sizes.back())),
                      {r});
    }
    group_.windows().mark_used(number);
    return sizes;
  }

  Result<Links> connect(Result<std::unique_ptr<transport::Endpoint>>& endpoint) {
    std::vector<transport::PeerDescriptor> peers;
    ACCORD_RETURN_IF_ERROR(exchange_descriptors(endpoint, peers));
    const Duration left = deadline_.remaining();
    Result<std::vector<std::unique_ptr<Link>>> connected =
        (*endpoint)->connect(peers, Deadline::in(left - std::min(kResultsTime, left / 4)));
    const auto is_mapped = [](const std::unique_ptr<Link>& link) { return link->mapped() != nullptr; };
    mapped = connected.ok() && std::all_of(connected->begin(), connected->end(), is_mapped);
    ACCORD_RETURN_IF_ERROR(agree_on(connected.status()));
    Links links(to_size(group_.size()));
    for (auto& link : *connected) links[to_size(link->peer())] = std::move(link);
    return links;
  }

  int number = 0;
  bool mapped = false;  ///< all ranks' memory, on all ranks

 private:
  template <typename T>
  Result<std::vector<T>> gather(std::span<const T> mine) {
    std::vector<T> all(mine.size() * to_size(group_.size()));
    const ConstBuffer input(mine.data(), mine.size_bytes(), DType::kUInt8);
    const Buffer output{all.data(), all.size() * sizeof(T), DType::kUInt8, {}};
    ACCORD_RETURN_IF_ERROR(group_.run(Call::all_gather(input, output), {.timeout = deadline_.remaining(), .stream = {}})
                               .with_context("creating a window"));
    return all;
  }

  // The first character of a text says what it is.
  static constexpr char kDescriptor = 'd';
  static constexpr char kError = 'e';

  Status exchange_descriptors(const Result<std::unique_ptr<transport::Endpoint>>& endpoint,
                              std::vector<transport::PeerDescriptor>& peers) {
    const std::string mine =
        endpoint.ok() ? kDescriptor + (*endpoint)->descriptor() : kError + endpoint.status().message();
    ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> all, gather_texts(group_, mine, deadline_.remaining()));
    for (Rank r = 0; r < group_.size(); ++r) {
      const std::string body = all[to_size(r)].substr(1);
      if (all[to_size(r)].front() != kDescriptor)
        return Status(endpoint.ok() ? StatusCode::kPeerLost : endpoint.status().code(),
                      fmt::format("{}: rank {} cannot open its endpoint: {}", where(), r, body), {r});
      if (r != group_.rank()) peers.push_back({r, body});
    }
    return {};
  }

  Status agree_on(const Status& mine) {
    const std::uint8_t status[2] = {static_cast<std::uint8_t>(mine.code()), static_cast<std::uint8_t>(mapped)};
    ACCORD_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> all, gather<std::uint8_t>(status));
    if (!mine.ok()) return mine.with_context(where());
    for (Rank r = 0; r < group_.size(); ++r) {
      const std::uint8_t code = all[2 * to_size(r)];
      mapped &= all[2 * to_size(r) + 1] != 0;
      if (code != 0)
        return Status(static_cast<StatusCode>(code), fmt::format("{}: rank {} could not connect", where(), r), {r});
    }
    return {};
  }

  std::string where() const { return group_.where("creating a window"); }

  Group& group_;
  Deadline deadline_;
};

}  // namespace

Result<std::shared_ptr<SharedWindow>> SharedWindow::open(std::shared_ptr<Group> group, std::size_t bytes,
                                                         Duration timeout) {
  Opening opening(*group, timeout);
  ACCORD_ASSIGN_OR_RETURN(std::vector<std::uint64_t> sizes, opening.agree(bytes));
  const std::uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
  Result<std::unique_ptr<transport::Endpoint>> endpoint = group->membership().transport->open(
      {.rank = group->rank(), .size = group->size(), .window_bytes = first_byte(group->size()) + largest});
  ACCORD_ASSIGN_OR_RETURN(Links links, opening.connect(endpoint));
  std::shared_ptr<SharedWindow> window(
      new SharedWindow(std::move(group), opening.number, std::move(sizes), std::move(*endpoint), std::move(links)));
  if (opening.mapped) window->register_memory();
  return window;
}

SharedWindow::SharedWindow(std::shared_ptr<Group> group, int number, std::vector<std::uint64_t> bytes,
                           std::unique_ptr<transport::Endpoint> endpoint, Links links)
    : group_(std::move(group)),
      number_(number),
      bytes_(std::move(bytes)),
      endpoint_(std::move(endpoint)),
      links_(std::make_shared<Links>(std::move(links))),
      allocator_(bytes_[to_size(group_->rank())]),
      sent_(bytes_.size()),
      consumed_(bytes_.size()) {}

SharedWindow::~SharedWindow() { group_->remove_window(number_); }

void SharedWindow::register_memory() {
  std::vector<std::byte*> members;
  members.reserve(to_size(group_->size()));
  for (Rank r = 0; r < group_->size(); ++r) members.push_back(memory(r).data());
  group_->windows().add(number_, memory(group_->rank()), std::move(members), links_);
}

std::span<std::byte> SharedWindow::memory(Rank rank) const {
  std::byte* const start = rank == group_->rank() ? endpoint_->window().data() : (*links_)[to_size(rank)]->mapped();
  if (start == nullptr) return {};
  return std::span(start + first_byte(group_->size()), bytes(rank));
}

std::string SharedWindow::where(std::string_view operation) const {
  return group_->where(fmt::format("window {}", operation));
}

Status SharedWindow::check_rank(std::string_view operation, Rank peer) const {
  if (peer >= 0 && peer < group_->size()) return {};
  return Status(StatusCode::kInvalidArgument, fmt::format("{}: {} is not a rank of the group, which has ranks 0 to {}",
                                                          where(operation), peer, group_->size() - 1));
}

Status SharedWindow::check_usable(std::string_view operation) const {
  ACCORD_RETURN_IF_ERROR(group_->used_after_fork());
  if (group_->state().value() == CommunicatorState::kReady) [[likely]]
    return {};
  return group_->state().examine_alarm(where(operation));
}

Status SharedWindow::check_transfer(std::string_view operation, Rank peer, std::size_t offset,
                                    const ConstBuffer& buffer) const {
  ACCORD_RETURN_IF_ERROR(check_rank(operation, peer));
  if (const Status wrong = check_memory("the buffer", buffer); !wrong.ok()) return wrong.with_context(where(operation));
  const std::size_t there = bytes(peer);
  if (offset <= there && buffer.count <= (there - offset) / size_of(buffer.dtype)) return check_usable(operation);
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}: {} x {} at offset {} do not fit into the {} that rank {} contributed",
                            where(operation), buffer.count, to_string(buffer.dtype), offset, bytes_text(there), peer));
}

Status SharedWindow::put(ConstBuffer source, Rank to, std::size_t offset) {
  ACCORD_RETURN_IF_ERROR(check_transfer("put", to, offset, source));
  if (source.count == 0) return {};
  if (const std::span<std::byte> mapped = memory(to); !mapped.empty()) {
    std::memmove(mapped.data() + offset, source.data, source.bytes());
    return {};
  }
  const std::span bytes(static_cast<const std::byte*>(source.data), source.bytes());
  return put_between_hosts(bytes, to, first_byte(group_->size()) + offset);
}

Status SharedWindow::get(Buffer destination, Rank from, std::size_t offset) {
  ACCORD_RETURN_IF_ERROR(check_transfer("get", from, offset, destination));
  if (destination.count == 0) return {};
  if (const std::span<std::byte> mapped = memory(from); !mapped.empty()) {
    std::memmove(destination.data, mapped.data() + offset, destination.bytes());
    return {};
  }
  const std::span bytes(static_cast<std::byte*>(destination.data), destination.bytes());
  return get_between_hosts(bytes, from, first_byte(group_->size()) + offset);
}

template <typename Ended>
Status SharedWindow::wait_for(std::string_view operation, Rank peer, const Ended& ended) {
  transport::RemoteWriter& remote = *(*links_)[to_size(peer)]->remote();
  Waiter waiter(group_->wait_policy());
  std::optional<Deadline> deadline;  // set once the wait is slow
  while (true) {
    ACCORD_ASSIGN_OR_RETURN(const bool done, ended());
    if (done) return {};
    remote.progress();
    if (!waiter.pause()) continue;
    if (!deadline) {
      ACCORD_RETURN_IF_ERROR(check_may_wait());
      deadline = Deadline::in(group_->options().timeout);
    }
    ACCORD_RETURN_IF_ERROR(check_interruption(operation, peer));
    ACCORD_RETURN_IF_ERROR(why_stop(operation, peer, "nothing arrived", *deadline));
  }
}

Status SharedWindow::wait_for_room(std::string_view operation, Rank to) {
  const transport::RemoteWriter* remote = (*links_)[to_size(to)]->remote();
  if (remote == nullptr || remote->has_room()) [[likely]]
    return {};
  return wait_for(operation, to, [&]() -> Result<bool> { return remote->has_room(); });
}

Status SharedWindow::put_between_hosts(std::span<const std::byte> source, Rank to, std::size_t offset) {
  while (!source.empty()) {
    ACCORD_RETURN_IF_ERROR(wait_for_room("put to", to));
    const std::size_t now = std::min(source.size(), kPutPiece);
    const std::lock_guard lock(links_mutex_);
    ACCORD_RETURN_IF_ERROR((*links_)[to_size(to)]->put(source.first(now), offset).with_context(where("put")));
    source = source.subspan(now);
    offset += now;
  }
  return {};
}

Status SharedWindow::get_between_hosts(std::span<std::byte> destination, Rank from, std::size_t offset) {
  transport::RemoteWriter& remote = *(*links_)[to_size(from)]->remote();
  while (!destination.empty()) {
    const std::size_t now = std::min(destination.size(), kGetPiece);
    ACCORD_RETURN_IF_ERROR(wait_for_room("get from", from));
    const std::uint64_t number = remote.begin_read(offset, destination.first(now));
    bool ended = false;
    Status status = wait_for("get from", from, [&]() -> Result<bool> {
      Result<bool> answer = remote.read_ended(number);
      ended = !answer.ok() || *answer;
      return answer;
    });
    if (!ended) remote.abandon_read(number);
    if (!status.ok()) return status;
    destination = destination.subspan(now);
    offset += now;
  }
  return {};
}

Status SharedWindow::signal(Rank to) {
  ACCORD_RETURN_IF_ERROR(check_rank("signal", to));
  ACCORD_RETURN_IF_ERROR(check_usable("signal"));
  if (to != group_->rank()) ACCORD_RETURN_IF_ERROR(wait_for_room("signal to", to));
  const std::lock_guard lock(links_mutex_);
  const std::uint64_t count = ++sent_[to_size(to)];
  if (to != group_->rank())
    return (*links_)[to_size(to)]->signal(counter(group_->rank()), count).with_context(where("signal"));
  Domain::word(endpoint_->window().data() + counter(to)).store(count, std::memory_order_release);
  return {};
}

bool SharedWindow::consume_signal(Rank from) {
  std::atomic<std::uint64_t>& consumed = consumed_[to_size(from)];
  std::uint64_t next = consumed.load(std::memory_order_relaxed);
  const std::uint64_t arrived =
      Domain::word(endpoint_->window().data() + counter(from)).load(std::memory_order_acquire);
  while (next < arrived)
    if (consumed.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) return true;
  return false;
}

Status SharedWindow::wait(Rank from, Duration timeout) {
  ACCORD_RETURN_IF_ERROR(check_rank("wait", from));
  ACCORD_RETURN_IF_ERROR(group_->used_after_fork());
  Waiter waiter(group_->wait_policy());
  std::optional<Deadline> deadline;  // set once the wait is slow
  while (!consume_signal(from)) {
    if (!waiter.pause()) continue;
    if (!deadline) {
      ACCORD_RETURN_IF_ERROR(check_may_wait());
      deadline = Deadline::in(timeout);
    }
    ACCORD_RETURN_IF_ERROR(check_interruption("wait for", from));
    Status failure = why_stop("wait for", from, "no signal arrived", *deadline);
    // A peer that leaves or fails may have signalled before.
    if (!failure.ok()) return consume_signal(from) ? Status() : failure;
  }
  return {};
}

// If memory is mapped, a peer's leaving is visible without asking, and its death, which the progress thread notices,
// fails the group.
PeerState SharedWindow::peer_state(Rank rank) const {
  Link& link = *(*links_)[to_size(rank)];
  return link.mapped() != nullptr ? link.peer_state() : link.update_peer_state();
}

Status SharedWindow::check_interruption(std::string_view operation, Rank peer) const {
  if (!Interruption::is_wanted()) return {};
  return {StatusCode::kAborted, fmt::format("{}: interrupted", where(fmt::format("{} rank {}", operation, peer)))};
}

Status SharedWindow::why_stop(std::string_view operation, Rank peer, std::string_view what, Deadline deadline) {
  const auto here = [&] { return where(fmt::format("{} rank {}", operation, peer)); };
  ACCORD_RETURN_IF_ERROR(group_->state().check(here()));
  if (peer != group_->rank()) {
    const std::lock_guard lock(links_mutex_);
    const bool closed = group_->state().peer(peer) == PeerState::kLeft;
    if (closed || peer_state(peer) == PeerState::kLeft)
      return Status(StatusCode::kPeerLost,
                    fmt::format("{}: rank {} has {}; nothing more will arrive from it", here(), peer,
                                closed ? "closed its communicator" : "released the window"),
                    {peer});
  }
  if (!deadline.passed()) return {};
  return Status(StatusCode::kTimeout, fmt::format("{}: {} in time", here(), what), {peer});
}

}  // namespace accord::comm
