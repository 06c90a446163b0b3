// accord's declarations of NCCL's interface, compared with NCCL's header.
#include <gtest/gtest.h>
#include <nccl.h>

#include <type_traits>

#include "comm/nccl/abi.hpp"

namespace accord::comm::nccl {
namespace {

template <typename T>
struct Erased {
  using Type = std::conditional_t<std::is_enum_v<T>, int, T>;
};
template <>
struct Erased<ncclComm_t> {
  using Type = Communicator*;
};
template <>
struct Erased<ncclComm_t*> {
  using Type = Communicator**;
};
#if NCCL_VERSION_CODE >= 22700
template <>
struct Erased<ncclWindow_t> {
  using Type = Window*;
};
template <>
struct Erased<ncclWindow_t*> {
  using Type = Window**;
};
#endif
template <>
struct Erased<cudaStream_t> {
  using Type = void*;
};
template <>
struct Erased<ncclUniqueId> {
  using Type = UniqueId;
};
template <>
struct Erased<ncclUniqueId*> {
  using Type = UniqueId*;
};
template <>
struct Erased<ncclConfig_t*> {
  using Type = Config*;
};
template <>
struct Erased<ncclResult_t*> {
  using Type = int*;
};
template <>
struct Erased<ncclRedOp_t*> {
  using Type = int*;
};

/// A function's type, with NCCL's types as accord declares them.
template <typename Function>
struct Plain;
template <typename Returned, typename... Parameters>
struct Plain<Returned (*)(Parameters...)> {
  using Type = typename Erased<Returned>::Type (*)(typename Erased<Parameters>::Type...);
};

#define ACCORD_SAME(name) static_assert(std::is_same_v<Plain<decltype(&::nccl##name)>::Type, decltype(Functions::name)>)
ACCORD_SAME(GetVersion);
ACCORD_SAME(GetErrorString);
ACCORD_SAME(GetLastError);
ACCORD_SAME(GetUniqueId);
ACCORD_SAME(CommInitRankConfig);
ACCORD_SAME(CommSplit);
ACCORD_SAME(CommDestroy);
ACCORD_SAME(CommAbort);
ACCORD_SAME(CommGetAsyncError);
ACCORD_SAME(CommCount);
ACCORD_SAME(CommUserRank);
ACCORD_SAME(CommCuDevice);
ACCORD_SAME(RedOpCreatePreMulSum);
ACCORD_SAME(RedOpDestroy);
ACCORD_SAME(GroupStart);
ACCORD_SAME(GroupEnd);
ACCORD_SAME(AllReduce);
ACCORD_SAME(Reduce);
ACCORD_SAME(Broadcast);
ACCORD_SAME(AllGather);
ACCORD_SAME(ReduceScatter);
ACCORD_SAME(Send);
ACCORD_SAME(Recv);
#if NCCL_VERSION_CODE >= 21900
ACCORD_SAME(MemAlloc);
ACCORD_SAME(MemFree);
ACCORD_SAME(CommRegister);
ACCORD_SAME(CommDeregister);
#endif
#if NCCL_VERSION_CODE >= 22700
ACCORD_SAME(CommWindowRegister);
ACCORD_SAME(CommWindowDeregister);
ACCORD_SAME(CommShrink);
static_assert(kSymmetric == NCCL_WIN_COLL_SYMMETRIC && kWindowAlignment == NCCL_WIN_REQUIRED_ALIGNMENT &&
              kShrinkDefault == NCCL_SHRINK_DEFAULT && kShrinkAbort == NCCL_SHRINK_ABORT);
#endif
#if NCCL_VERSION_CODE >= 22809
ACCORD_SAME(CommRevoke);
#endif
#undef ACCORD_SAME
static_assert(static_cast<int>(kSuccess) == ncclSuccess && static_cast<int>(kInvalidUsage) == ncclInvalidUsage &&
              static_cast<int>(kRemoteError) == ncclRemoteError && static_cast<int>(kInProgress) == ncclInProgress);
static_assert(static_cast<int>(kInt8) == ncclInt8 && static_cast<int>(kUint8) == ncclUint8 &&
              static_cast<int>(kInt32) == ncclInt32 && static_cast<int>(kUint32) == ncclUint32 &&
              static_cast<int>(kInt64) == ncclInt64 && static_cast<int>(kUint64) == ncclUint64 &&
              static_cast<int>(kFloat16) == ncclFloat16 && static_cast<int>(kFloat32) == ncclFloat32 &&
              static_cast<int>(kFloat64) == ncclFloat64 && static_cast<int>(kBfloat16) == ncclBfloat16);
#if NCCL_VERSION_CODE >= 22400
static_assert(static_cast<int>(kFloat8e4m3) == ncclFloat8e4m3 && static_cast<int>(kFloat8e5m2) == ncclFloat8e5m2);
#endif
static_assert(static_cast<int>(kSum) == ncclSum && static_cast<int>(kProd) == ncclProd &&
              static_cast<int>(kMax) == ncclMax && static_cast<int>(kMin) == ncclMin &&
              static_cast<int>(kAvg) == ncclAvg);
static_assert(static_cast<int>(kOnDevice) == ncclScalarDevice && static_cast<int>(kOnHost) == ncclScalarHostImmediate);

#define ACCORD_AT(mine, theirs) static_assert(offsetof(Config, mine) == offsetof(ncclConfig_t, theirs))
ACCORD_AT(size, size);
ACCORD_AT(magic, magic);
ACCORD_AT(version, version);
ACCORD_AT(blocking, blocking);
ACCORD_AT(cga_cluster_size, cgaClusterSize);
ACCORD_AT(min_ctas, minCTAs);
ACCORD_AT(max_ctas, maxCTAs);
ACCORD_AT(net_name, netName);
ACCORD_AT(split_share, splitShare);
#undef ACCORD_AT

TEST(NcclHeader, matches_the_declarations_of_accord) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config mine;
  EXPECT_EQ(mine.magic, theirs.magic);
  EXPECT_LE(mine.size, theirs.size);
  EXPECT_LE(mine.version, theirs.version);
  EXPECT_EQ(mine.blocking, theirs.blocking);
  EXPECT_EQ(mine.net_name, theirs.netName);
  EXPECT_EQ(sizeof(UniqueId), sizeof(ncclUniqueId));
}

}  // namespace
}  // namespace accord::comm::nccl
