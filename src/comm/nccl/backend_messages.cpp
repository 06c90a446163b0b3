// Messages use the communicator of all ranks if both ranks have it when they first exchange messages, else one for
// the pair.
#include <vector>

#include "comm/group.hpp"
#include "comm/nccl/backend.hpp"

namespace accord::comm {

Status NcclBackend::connect_pairs(std::span<const Call> calls, Deadline deadline) {
  /// Exchanged by two ranks; the id is the lower rank's.
  struct Offer {
    std::uint64_t has_whole = 0;
    nccl::UniqueId id = {};
  };
  std::map<Rank, Offer> mine, theirs;
  for (const Call& call : calls)
    if (!pairs_.contains(call.peer)) mine[call.peer].has_whole = whole_ != nullptr ? 1 : 0;
  const auto send_offer = [&](Rank peer) {
    return group_.send_internal(std::as_bytes(std::span(&mine[peer], 1)), peer, deadline);
  };
  const auto receive_offer = [&](Rank peer) {
    return group_.receive_internal(std::as_writable_bytes(std::span(&theirs[peer], 1)), peer, deadline);
  };
  for (auto& [peer, offer] : mine) {
    if (peer < group_.rank()) continue;
    if (const int code = library().call.GetUniqueId(&offer.id); code != nccl::kSuccess)
      return library().failure("GetUniqueId", code);
    ACCORD_RETURN_IF_ERROR(send_offer(peer));
  }
  for (const auto& [peer, offer] : mine) {
    if (peer > group_.rank()) break;
    ACCORD_RETURN_IF_ERROR(receive_offer(peer));
    ACCORD_RETURN_IF_ERROR(send_offer(peer));
  }
  for (const auto& [peer, offer] : mine)
    if (peer > group_.rank()) ACCORD_RETURN_IF_ERROR(receive_offer(peer));
  // All begin to connect before this rank waits for one: peers may wait for them in another order.
  Status connected;
  std::vector<std::shared_ptr<Connection>> begun;
  for (const auto& [peer, offer] : mine) {
    Pair& pair = add_pair(peer);
    if (offer.has_whole == 1 && theirs[peer].has_whole == 1) continue;
    const bool is_lower = group_.rank() < peer;
    const auto made = add_connection(pair.connection);
    if (connected = made.status(); !connected.ok()) break;
    begun.push_back(*made);
    begun.back()->begin_connecting(is_lower ? offer.id : theirs[peer].id, is_lower ? 0 : 1, 2, settings());
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
