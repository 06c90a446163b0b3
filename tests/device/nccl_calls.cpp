// Collectives, sends and receives at the time of the call, when invalid arguments are reported. nccl_exchange.cpp does
// their work.
#include <fmt/format.h>

#include "device/nccl_world.hpp"

namespace accord::testing::nccl {
namespace {

bool reduces(Kind kind) { return kind == Kind::kReduce || kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }
bool has_root(Kind kind) { return kind == Kind::kReduce || kind == Kind::kBroadcast; }
bool has_peer(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }

std::string line_of(const Operation& operation) {
  constexpr const char* kOps[] = {"sum", "prod", "max", "min", "avg"};
  std::string line = fmt::format(" count={} dtype={}", operation.count, name_of(operation.dtype));
  const bool builtin = operation.op >= ncclSum && operation.op < ncclNumOps;
  if (reduces(operation.kind)) line += fmt::format(" op={}", builtin ? kOps[operation.op] : "premulsum");
  if (has_root(operation.kind)) line += fmt::format(" root={}", operation.root);
  if (has_peer(operation.kind)) line += fmt::format(" peer={}", operation.root);
  return line;
}

/// NVIDIA's NCCL has no kernel for these in a communicator of one rank.
bool is_scaled_float8_of_one_rank(const ncclComm& comm, const Operation& operation) {
  const bool is_float8 = operation.dtype == ncclFloat8e4m3 || operation.dtype == ncclFloat8e5m2;
  return comm.size == 1 && operation.count > 0 && reduces(operation.kind) && is_float8 && operation.op >= ncclAvg;
}

/// Returns what is wrong with the operation; empty if nothing is. Copies the factor of its operator from the
/// communicator.
std::string refusal(const ncclComm& comm, Operation& operation, cudaStream_t stream) {
  if (comm.finalized) return "after ncclCommFinalize";
  if (comm.revoked) return "after ncclCommRevoke";
  if (comm.stopped) return "after ncclCommShrink with NCCL_SHRINK_ABORT";
  const std::size_t size = size_of(operation.dtype);
  if (size == 0) return fmt::format("dtype {}", static_cast<int>(operation.dtype));
  if (operation.root < 0 || operation.root >= comm.size)
    return fmt::format("root or peer {} does not exist among {} ranks", operation.root, comm.size);
  if (operation.op < ncclSum) return fmt::format("op {}", static_cast<int>(operation.op));
  if (operation.op >= ncclNumOps) {
    const auto found = comm.redops.find(operation.op);
    if (found == comm.redops.end()) return fmt::format("op {}", static_cast<int>(operation.op));
    if (found->second.dtype != operation.dtype) return "the op was created for another dtype";
    operation.factor = found->second;
  }
  if (is_scaled_float8_of_one_rank(comm, operation)) return "8-bit floats of a single rank cannot be scaled";
  if (const auto device = HostRuntime::instance().device_of(Stream{stream});
      stream != nullptr && device != comm.where())
    return fmt::format("the stream is on {}, but the communicator is on {}", device ? to_string(*device) : "no device",
                       to_string(comm.where()));

  const Kind kind = operation.kind;
  const bool at_root = operation.root == comm.rank;
  const std::size_t part = operation.count * size, whole = part * static_cast<std::size_t>(comm.size);
  const bool sends = kind != Kind::kReceive && (kind != Kind::kBroadcast || at_root);
  const bool receives = kind != Kind::kSend && (kind != Kind::kReduce || at_root);
  const HostRuntime& runtime = HostRuntime::instance();
  if (sends && part > 0 && !runtime.holds(operation.send, kind == Kind::kReduceScatter ? whole : part))
    return "sendbuff does not have that size in memory that a device can access";
  if (receives && part > 0 && !runtime.holds(operation.receive, kind == Kind::kAllGather ? whole : part))
    return "recvbuff does not have that size in memory that a device can access";
  return "";
}

ncclResult_t call(std::string_view symbol, ncclComm_t comm, Operation operation, cudaStream_t stream) {
  World& world = World::instance();
  std::unique_lock lock(world.mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = begin(symbol, comm, Needs::kReadiness, line_of(operation), result);
  if (found == nullptr) return result;
  const std::string wrong = refusal(*found, operation, stream);
  if (!wrong.empty()) return fail(ncclInvalidArgument, fmt::format("{}: {}", symbol, wrong));
  operation.hangs = world.pop_hang(symbol, found->home_rank);
  if (operation.count == 0 && !has_peer(operation.kind) && !operation.hangs) return ncclSuccess;
  if (!in_group() && !has_peer(operation.kind)) result = connect_ranks(lock, found);
  if (result != ncclSuccess && result != ncclInProgress) return result;
  result = start(found, operation, stream);
  if (result != ncclSuccess || in_group() || found->options.blocking) return result;
  found->is_unpolled = true;
  ++world.started_threads;
  return ncclInProgress;
}

}  // namespace

extern "C" {

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return call("ncclReduce", comm, {Kind::kReduce, send, receive, count, dtype, op, root, {}}, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call("ncclBroadcast", comm, {Kind::kBroadcast, send, receive, count, dtype, ncclSum, root, {}}, stream);
}

ncclResult_t ncclBcast(void* memory, std::size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return call("ncclBcast", comm, {Kind::kBroadcast, memory, memory, count, dtype, ncclSum, root, {}}, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return call("ncclAllReduce", comm, {Kind::kAllReduce, send, receive, count, dtype, op, 0, {}}, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return call("ncclReduceScatter", comm, {Kind::kReduceScatter, send, receive, count, dtype, op, 0, {}}, stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream) {
  return call("ncclAllGather", comm, {Kind::kAllGather, send, receive, count, dtype, ncclSum, 0, {}}, stream);
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call("ncclSend", comm, {Kind::kSend, send, nullptr, count, dtype, ncclSum, peer, {}}, stream);
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call("ncclRecv", comm, {Kind::kReceive, nullptr, receive, count, dtype, ncclSum, peer, {}}, stream);
}

}  // extern "C"

}  // namespace accord::testing::nccl
