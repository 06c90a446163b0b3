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
  for (const auto& [peer, offer] : mine) {
    Pair& pair = pairs_[peer];
    if (offer.has_whole == 1 && theirs[peer].has_whole == 1) continue;
    const bool is_lower = group_.rank() < peer;
    ACCORD_ASSIGN_OR_RETURN(pair.communicator, connect(is_lower ? offer.id : theirs[peer].id, is_lower ? 0 : 1, 2));
  }
  for (const auto& [peer, offer] : mine)
    if (pairs_[peer].communicator != nullptr)
      ACCORD_RETURN_IF_ERROR(wait_until_idle(pairs_[peer].communicator, "CommInitRankConfig", deadline));
  return {};
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
  std::map<nccl::Communicator*, Pair*> used;
  for (const Call& call : calls) {
    Pair& pair = pairs_[call.peer];
    used.emplace(pair.communicator, &pair);
  }
  const bool apart = used.size() > 1;
  std::map<nccl::Communicator*, Stream> streams;
  for (const auto& [communicator, pair] : used) {
    streams[communicator] = stream;
    if (!apart || communicator == nullptr) continue;
    ACCORD_ASSIGN_OR_RETURN(streams[communicator], fork(*pair, stream));
  }
  if (const int code = library().call.GroupStart(); code != nccl::kSuccess)
    return library().failure("GroupStart", code);
  Status put;
  for (const Call& call : calls) {
    nccl::Communicator* const own = pairs_[call.peer].communicator;
    const bool is_lower = group_.rank() < call.peer;
    const nccl::Member by = own == nullptr ? whole() : member(own, is_lower ? 0 : 1, 2);
    const Rank peer = own == nullptr ? call.peer : is_lower ? 1 : 0;
    if (put.ok()) put = nccl::put_message(by, call, peer, streams[own]);
  }
  const int code = library().call.GroupEnd();
  if (put.ok() && code != nccl::kSuccess && code != nccl::kInProgress) put = library().failure("GroupEnd", code);
  for (const auto& [communicator, pair] : used) {
    if (put.ok()) put = wait_until_idle(communicator == nullptr ? whole_ : communicator, "GroupEnd", deadline);
    if (!apart || communicator == nullptr) continue;
    // Also after a failure: messages that are in the pair's stream use the caller's memory.
    Status joined = join(*pair, stream);
    if (put.ok()) put = std::move(joined);
  }
  return put;
}

}  // namespace accord::comm
