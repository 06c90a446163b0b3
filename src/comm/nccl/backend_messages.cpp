// Messages use the communicator of all ranks if both ranks have it when they first exchange messages, else one for
// the pair.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "comm/group.hpp"
#include "comm/nccl/backend.hpp"

namespace accord::comm {

struct NcclBackend::Offers {
  /// Exchanged by two ranks; the id is the lower rank's.
  struct Offer {
    std::uint64_t has_whole = 0;
    nccl::UniqueId id = {};
    std::uint64_t failure = 0;  ///< the code of why this rank cannot connect, or 0
    char reason[512] = {};

    void refuse(const Status& why) {
      failure = static_cast<std::uint64_t>(why.code());
      why.message().copy(reason, sizeof reason - 1);
    }
  };
  Offer mine, theirs;
};

Result<std::map<Rank, NcclBackend::Offers>> NcclBackend::exchange_offers(std::span<const Call> calls,
                                                                         Deadline deadline) {
  std::map<Rank, Offers> offers;
  for (const Call& call : calls)
    if (!pairs_.contains(call.peer)) offers[call.peer].mine.has_whole = whole_ != nullptr ? 1 : 0;
  Status failure = library_.status();
  for (auto& [peer, each] : offers) {
    if (peer < group_.rank() || !failure.ok()) continue;
    if (const int code = library().call.GetUniqueId(&each.mine.id); code != nccl::kSuccess)
      failure = library().failure("GetUniqueId", code);
  }
  for (auto& [peer, each] : offers)
    if (!failure.ok()) each.mine.refuse(failure);
  const auto send = [&](Rank peer) {
    return group_.send_internal(std::as_bytes(std::span(&offers[peer].mine, 1)), peer, deadline);
  };
  const auto receive = [&](Rank peer) {
    return group_.receive_internal(std::as_writable_bytes(std::span(&offers[peer].theirs, 1)), peer, deadline);
  };
  const auto exchange = [&]() -> Status {
    for (const auto& [peer, each] : offers)
      if (peer > group_.rank()) ACCORD_RETURN_IF_ERROR(send(peer));
    for (const auto& [peer, each] : offers) {
      if (peer > group_.rank()) break;
      ACCORD_RETURN_IF_ERROR(receive(peer));
      ACCORD_RETURN_IF_ERROR(send(peer));
    }
    for (const auto& [peer, each] : offers)
      if (peer > group_.rank()) ACCORD_RETURN_IF_ERROR(receive(peer));
    return {};
  };
  const Status exchanged = exchange();
  ACCORD_RETURN_IF_ERROR(failure);
  ACCORD_RETURN_IF_ERROR(exchanged);
  for (const auto& [peer, each] : offers)
    if (each.theirs.failure != 0)
      return Status(static_cast<StatusCode>(each.theirs.failure),
                    fmt::format("rank {} has no NCCL for messages: {}", peer, each.theirs.reason), {peer});
  return offers;
}

Status NcclBackend::agree_on_messages(std::span<const Call> calls, Deadline deadline) {
  return library_.ok() ? Status() : exchange_offers(calls, deadline).status();
}

Status NcclBackend::connect_pairs(std::span<const Call> calls, Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(auto offers, exchange_offers(calls, deadline));
  // All begin to connect before this rank waits for one: peers may wait for them in another order.
  Status connected;
  std::vector<std::shared_ptr<Connection>> begun;
  for (const auto& [peer, each] : offers) {
    Pair& pair = add_pair(peer);
    if (each.mine.has_whole == 1 && each.theirs.has_whole == 1) continue;
    const bool is_lower = group_.rank() < peer;
    const auto made = add_connection(pair.connection);
    if (connected = made.status(); !connected.ok()) break;
    begun.push_back(*made);
    begun.back()->begin_connecting(is_lower ? each.mine.id : each.theirs.id, is_lower ? 0 : 1, 2, settings());
  }
  for (const auto& one : begun) {
    Status status = one->finish_connecting(check_until(deadline));
    if (connected.ok()) connected = std::move(status);
  }
  return connected;
}

NcclBackend::Pair& NcclBackend::add_pair(Rank peer) {
  const std::lock_guard lock(connections_mutex_);
  return pairs_[peer];
}

Result<Stream> NcclBackend::fork(Pair& pair, Stream stream) {
  if (pair.event.handle == nullptr) {
    ACCORD_ASSIGN_OR_RETURN(pair.stream,
                            runtime_.create_stream(device_, group_.options().hints.is_high_priority_stream));
    ACCORD_ASSIGN_OR_RETURN(pair.event, runtime_.create_event(device_));
  }
  ACCORD_RETURN_IF_ERROR(runtime_.record(pair.event, device_, stream));
  ACCORD_RETURN_IF_ERROR(runtime_.wait(pair.event, device_, pair.stream));
  return pair.stream;
}

Status NcclBackend::join(const Pair& pair, Stream stream) {
  ACCORD_RETURN_IF_ERROR(runtime_.record(pair.event, device_, pair.stream));
  return runtime_.wait(pair.event, device_, stream);
}

Status NcclBackend::enqueue_messages(std::span<const Call> calls, Stream stream, Deadline deadline) {
  ACCORD_RETURN_IF_ERROR(connect_pairs(calls, deadline));
  const nccl::WaitCheck check = check_until(deadline);
  struct Used {
    Used(Connection& connection, const nccl::WaitCheck& check, Pair& its_pair, Stream its_stream)
        : use(connection, "GroupEnd", check), pair(its_pair), stream(its_stream) {}
    nccl::Use use;
    Pair& pair;  ///< one of those that use this communicator
    Stream stream;
  };
  std::map<Connection*, Used> used;
  const auto connection_of = [this](Rank peer) {
    Connection* const own = pairs_[peer].connection.get();
    return own != nullptr ? own : whole_.get();
  };
  for (const Call& call : calls) {
    Connection& connection = *connection_of(call.peer);
    const auto [place, is_new] = used.try_emplace(&connection, connection, check, pairs_[call.peer], stream);
    ACCORD_RETURN_IF_ERROR(place->second.use.status());
  }
  const auto is_apart = [&](const auto& one) { return used.size() > 1 && one.first != whole_.get(); };
  for (auto& each : used) {
    if (!is_apart(each)) continue;
    ACCORD_ASSIGN_OR_RETURN(each.second.stream, fork(each.second.pair, stream));
  }
  if (const int code = library().call.GroupStart(); code != nccl::kSuccess)
    return library().failure("GroupStart", code);
  Status put;
  for (const Call& call : calls) {
    Connection* const connection = connection_of(call.peer);
    Used& one = used.at(connection);
    const bool is_lower = group_.rank() < call.peer;
    const bool is_whole = connection == whole_.get();
    const nccl::Member by =
        is_whole ? nccl::Member{one.use, group_.rank(), group_.size()} : nccl::Member{one.use, is_lower ? 0 : 1, 2};
    const Rank peer = is_whole ? call.peer : is_lower ? 1 : 0;
    if (put.ok()) put = nccl::put_message(by, call, peer, one.stream);
  }
  const int code = library().call.GroupEnd();
  for (auto& one : used) {
    Status ended = one.second.use.result("GroupEnd", code);
    if (put.ok()) put = std::move(ended);
    if (put.ok()) put = one.second.use.settle("GroupEnd", check);
    if (!is_apart(one)) continue;
    // Also after a failure: messages that are in the pair's stream use the caller's memory.
    Status joined = join(one.second.pair, stream);
    if (put.ok()) put = std::move(joined);
  }
  return put;
}

}  // namespace accord::comm
