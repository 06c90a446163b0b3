#pragma once
// The part of NCCL's C interface that this library has, with the layout of nccl.h 2.29.7. In a namespace, so that it
// does not conflict with other declarations.

#include <climits>
#include <cstddef>

namespace accord::testing::nccl {

extern "C" {

using ncclComm_t = struct ncclComm*;
using ncclWindow_t = struct ncclWindow_vidmem*;
using cudaStream_t = void*;

struct ncclUniqueId {
  char internal[128];
};

enum ncclResult_t : int {
  ncclSuccess,
  ncclUnhandledCudaError,
  ncclSystemError,
  ncclInternalError,
  ncclInvalidArgument,
  ncclInvalidUsage,
  ncclRemoteError,
  ncclInProgress,
};

enum ncclDataType_t : int {
  ncclInt8,
  ncclUint8,
  ncclInt32,
  ncclUint32,
  ncclInt64,
  ncclUint64,
  ncclFloat16,
  ncclFloat32,
  ncclFloat64,
  ncclBfloat16,
  ncclFloat8e4m3,
  ncclFloat8e5m2,
  ncclNumTypes,
};

/// Operators created by ncclRedOpCreatePreMulSum are numbers from ncclNumOps up.
enum ncclRedOp_t : int { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps };

enum ncclScalarResidence_t : int { ncclScalarDevice, ncclScalarHostImmediate };

inline constexpr int NCCL_CONFIG_UNDEF_INT = INT_MIN;
inline constexpr unsigned int NCCL_API_MAGIC = 0xcafebeef;
inline constexpr int NCCL_SPLIT_NOCOLOR = -1;
inline constexpr int NCCL_WIN_COLL_SYMMETRIC = 1;
inline constexpr int NCCL_SHRINK_DEFAULT = 0;
inline constexpr int NCCL_SHRINK_ABORT = 1;
inline constexpr int NCCL_REVOKE_DEFAULT = 0;

/// Later versions append fields; `size` determines which fields exist.
struct ncclConfig_t {
  std::size_t size = sizeof(ncclConfig_t);
  unsigned int magic = NCCL_API_MAGIC;
  unsigned int version = 22907;
  int blocking = NCCL_CONFIG_UNDEF_INT;
  int cgaClusterSize = NCCL_CONFIG_UNDEF_INT;
  int minCTAs = NCCL_CONFIG_UNDEF_INT;
  int maxCTAs = NCCL_CONFIG_UNDEF_INT;
  const char* netName = nullptr;
  int splitShare = NCCL_CONFIG_UNDEF_INT;
  int trafficClass = NCCL_CONFIG_UNDEF_INT;
  const char* commName = nullptr;
  int collnetEnable = NCCL_CONFIG_UNDEF_INT;
  int CTAPolicy = NCCL_CONFIG_UNDEF_INT;
  int shrinkShare = NCCL_CONFIG_UNDEF_INT;
  int nvlsCTAs = NCCL_CONFIG_UNDEF_INT;
  int nChannelsPerNetPeer = NCCL_CONFIG_UNDEF_INT;
  int nvlinkCentricSched = NCCL_CONFIG_UNDEF_INT;
  int graphUsageMode = NCCL_CONFIG_UNDEF_INT;
  int numRmaCtx = NCCL_CONFIG_UNDEF_INT;
};

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config);
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child, ncclConfig_t* config,
                            int flags);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank);

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes);
ncclResult_t ncclMemFree(void* memory);
ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, std::size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, std::size_t bytes, ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBcast(void* memory, std::size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

}  // extern "C"

}  // namespace accord::testing::nccl
