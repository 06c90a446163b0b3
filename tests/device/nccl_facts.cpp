// Query calls.
#include "device/nccl_world.hpp"

namespace accord::testing::nccl {
namespace {

ncclResult_t store_fact(std::string_view symbol, ncclComm_t comm, int* value, int (*get)(const ncclComm&)) {
  const std::lock_guard lock(World::instance().mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = find_in_state(symbol, comm, Needs::kReadiness, result);
  if (found == nullptr) return result;
  if (value == nullptr) return fail(ncclInvalidArgument, std::string(symbol) + ": null");
  *value = get(*found);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  World& world = World::instance();
  const std::lock_guard lock(world.mutex);
  if (const ncclResult_t failure = world.pop_failure("ncclGetVersion", -1); failure != ncclSuccess) return failure;
  if (version == nullptr) return fail(ncclInvalidArgument, "ncclGetVersion: null");
  *version = world.version;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::lock_guard lock(World::instance().mutex);
  ncclResult_t result = ncclSuccess;
  const auto found = find_in_state("ncclCommGetAsyncError", comm, Needs::kExistence, result);
  if (found == nullptr) return result;
  if (error == nullptr) return fail(ncclInvalidArgument, "ncclCommGetAsyncError: null");
  *error = state_of(*found);
  found->is_unpolled = false;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return store_fact("ncclCommCount", comm, count, [](const ncclComm& found) { return found.size; });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return store_fact("ncclCommCuDevice", comm, device, [](const ncclComm& found) { return found.device; });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return store_fact("ncclCommUserRank", comm, rank, [](const ncclComm& found) { return found.rank; });
}

}  // extern "C"

}  // namespace accord::testing::nccl
