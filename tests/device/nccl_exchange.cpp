// Matches operations of different ranks. The n-th collectives that the ranks of a communicator post belong
// together, and so do the n-th send and the n-th receive of a pair. The last rank to arrive does the work for all of
// them, from copies of the data sent, so that buffers may be in place. Ranks that disagree get an asynchronous error,
// and their operations end only with an abort.
#include <fmt/format.h>

#include <cstring>

#include "device/nccl_world.hpp"

namespace accord::testing::nccl {
namespace {

using Bytes = std::vector<std::byte>;

void complete(const Posted& posted) {
  posted.comm->pending.erase(posted.done);
  HostRuntime::instance().reach_point(posted.done);
}

void disagree(const Posted& posted) {
  posted.comm->error = ncclInvalidUsage;
  posted.comm->error_text = "ranks called with different arguments";
}

bool agree(const Operation& a, const Operation& b) {
  const bool same_op = a.op == b.op || (a.op >= ncclNumOps && b.op >= ncclNumOps);
  return a.kind == b.kind && a.count == b.count && a.dtype == b.dtype && a.root == b.root && same_op;
}

/// Returns the reduction of the data of all ranks.
Bytes reduced(const std::map<int, Posted>& ranks, std::size_t count) {
  const Operation& first = ranks.begin()->second.operation;
  const std::size_t size = size_of(first.dtype);
  std::vector<const void*> sources;
  std::vector<Scalar> factors;
  for (const auto& [rank, posted] : ranks) {
    sources.push_back(posted.operation.send);
    if (!posted.operation.factor.has_value()) continue;
    const Factor& factor = *posted.operation.factor;
    factors.push_back(factor.value);
    if (factor.memory != nullptr) std::memcpy(factors.back().data(), factor.memory, size);
  }
  Bytes result(count * size);
  reduce(result.data(), sources, count, first.dtype, first.op, factors);
  return result;
}

/// Returns the collective's result: the whole, where each rank receives all of it, or the concatenated parts, where
/// each rank receives one.
Bytes outcome(const std::map<int, Posted>& ranks) {
  const Operation& first = ranks.begin()->second.operation;
  const std::size_t bytes = first.count * size_of(first.dtype);
  if (first.kind == Kind::kReduceScatter) return reduced(ranks, first.count * ranks.size());
  if (first.kind != Kind::kBroadcast && first.kind != Kind::kAllGather) return reduced(ranks, first.count);
  Bytes result;
  for (const auto& [rank, posted] : ranks) {
    const auto* const sent = static_cast<const std::byte*>(posted.operation.send);
    if (first.kind == Kind::kAllGather || rank == first.root) result.insert(result.end(), sent, sent + bytes);
  }
  return result;
}

void run_collective(const std::map<int, Posted>& ranks) {
  const Operation& first = ranks.begin()->second.operation;
  for (const auto& [rank, posted] : ranks) {
    if (agree(first, posted.operation)) continue;
    for (const auto& [each, theirs] : ranks) disagree(theirs);
    return;
  }
  const Bytes result = outcome(ranks);
  const std::size_t part = first.count * size_of(first.dtype);
  for (const auto& [rank, posted] : ranks) {
    void* const to = posted.operation.receive;
    if (first.kind == Kind::kReduceScatter)
      std::memcpy(to, result.data() + static_cast<std::size_t>(rank) * part, part);
    else if (first.kind != Kind::kReduce || rank == first.root)
      std::memcpy(to, result.data(), result.size());
    complete(posted);
  }
}

void run_message(const Posted& send, const Posted& receive) {
  const std::size_t bytes = send.operation.count * size_of(send.operation.dtype);
  if (bytes != receive.operation.count * size_of(receive.operation.dtype)) {
    disagree(send);
    disagree(receive);
    return;
  }
  if (bytes > 0) std::memmove(receive.operation.receive, send.operation.send, bytes);
  complete(send);
  complete(receive);
}

}  // namespace

void post(Posted posted) {
  ncclComm& comm = *posted.comm;
  Clique& clique = *comm.clique;
  const Kind kind = posted.operation.kind;
  if (kind != Kind::kSend && kind != Kind::kReceive) {
    const std::uint64_t number = comm.collectives++;
    if (posted.operation.hangs) return;
    auto& ranks = clique.collectives[number];
    ranks.emplace(comm.rank, std::move(posted));
    if (static_cast<int>(ranks.size()) < comm.size) return;
    run_collective(ranks);
    clique.collectives.erase(number);
    return;
  }
  if (posted.operation.hangs) return;
  const int peer = posted.operation.root;
  const auto pair = kind == Kind::kSend ? std::pair(comm.rank, peer) : std::pair(peer, comm.rank);
  auto& sends = clique.sends[pair];
  auto& receives = clique.receives[pair];
  (kind == Kind::kSend ? sends : receives).push_back(std::move(posted));
  if (sends.empty() || receives.empty()) return;
  run_message(sends.front(), receives.front());
  sends.pop_front();
  receives.pop_front();
}

}  // namespace accord::testing::nccl
