#pragma once
// The numbers of accord.h and the C++ values that they stand for: one table for each enum, one row for each value. A
// value that is added to a C++ enum gets the next number in accord.h and a row here; without them this file does not
// compile.

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string_view>

#include "accord/accord.h"
#include "accord/call.hpp"
#include "accord/communicator.hpp"
#include "accord/device_window.hpp"
#include "accord/expert_parallel.hpp"
#include "accord/generation.hpp"
#include "accord/status.hpp"
#include "accord/store.hpp"

namespace accord::c {

template <typename Value>
struct NumberRow {
  std::int32_t number;
  Value value;
};

inline constexpr auto kStatusCodes = std::to_array<NumberRow<StatusCode>>({
    {ACCORD_OK, StatusCode::kOk},
    {ACCORD_INVALID_ARGUMENT, StatusCode::kInvalidArgument},
    {ACCORD_UNSUPPORTED, StatusCode::kUnsupported},
    {ACCORD_NOT_FOUND, StatusCode::kNotFound},
    {ACCORD_MISMATCH, StatusCode::kMismatch},
    {ACCORD_PEER_LOST, StatusCode::kPeerLost},
    {ACCORD_TIMEOUT, StatusCode::kTimeout},
    {ACCORD_ABORTED, StatusCode::kAborted},
    {ACCORD_CLOSED, StatusCode::kClosed},
    {ACCORD_CORRUPT, StatusCode::kCorrupt},
    {ACCORD_IO, StatusCode::kIo},
    {ACCORD_RESOURCE_EXHAUSTED, StatusCode::kResourceExhausted},
    {ACCORD_WRONG_STATE, StatusCode::kWrongState},
    {ACCORD_INTERNAL, StatusCode::kInternal},
});

inline constexpr auto kDTypes = std::to_array<NumberRow<DType>>({
    {ACCORD_INT8, DType::kInt8},
    {ACCORD_INT16, DType::kInt16},
    {ACCORD_INT32, DType::kInt32},
    {ACCORD_INT64, DType::kInt64},
    {ACCORD_UINT8, DType::kUInt8},
    {ACCORD_UINT16, DType::kUInt16},
    {ACCORD_UINT32, DType::kUInt32},
    {ACCORD_UINT64, DType::kUInt64},
    {ACCORD_FLOAT16, DType::kFloat16},
    {ACCORD_BFLOAT16, DType::kBFloat16},
    {ACCORD_FLOAT32, DType::kFloat32},
    {ACCORD_FLOAT64, DType::kFloat64},
    {ACCORD_FLOAT8_E4M3FN, DType::kFloat8E4M3FN},
    {ACCORD_FLOAT8_E5M2, DType::kFloat8E5M2},
    {ACCORD_COMPLEX64, DType::kComplex64},
    {ACCORD_COMPLEX128, DType::kComplex128},
    {ACCORD_BOOL, DType::kBool},
});

inline constexpr auto kOps = std::to_array<NumberRow<ReduceOp>>({
    {ACCORD_SUM, ReduceOp::kSum},
    {ACCORD_PRODUCT, ReduceOp::kProduct},
    {ACCORD_MIN, ReduceOp::kMin},
    {ACCORD_MAX, ReduceOp::kMax},
    {ACCORD_BAND, ReduceOp::kBand},
    {ACCORD_BOR, ReduceOp::kBor},
    {ACCORD_BXOR, ReduceOp::kBxor},
    {ACCORD_AVG, ReduceOp::kAvg},
    {ACCORD_PREMUL_SUM, ReduceOp::kPremulSum},
});

inline constexpr auto kWindowUses = std::to_array<NumberRow<WindowUse>>({
    {ACCORD_WINDOW_PLAIN, WindowUse::kPlain},
    {ACCORD_WINDOW_REGISTERED, WindowUse::kRegistered},
    {ACCORD_WINDOW_SYMMETRIC, WindowUse::kSymmetric},
});

inline constexpr auto kDevices = std::to_array<NumberRow<DeviceType>>({
    {ACCORD_CPU, DeviceType::kCpu},
    {ACCORD_CUDA, DeviceType::kCuda},
});

inline constexpr auto kStoreRoles = std::to_array<NumberRow<StoreRole>>({
    {ACCORD_STORE_CLIENT, StoreRole::kClient},
    {ACCORD_STORE_HOST, StoreRole::kHost},
});

inline constexpr auto kStates = std::to_array<NumberRow<CommunicatorState>>({
    {ACCORD_STATE_READY, CommunicatorState::kReady},
    {ACCORD_STATE_FAILED, CommunicatorState::kFailed},
    {ACCORD_STATE_CLOSED, CommunicatorState::kClosed},
});

inline constexpr auto kOverflowPolicies = std::to_array<NumberRow<OverflowPolicy>>({
    {ACCORD_OVERFLOW_FAIL, OverflowPolicy::kFail},
    {ACCORD_OVERFLOW_DROP_BY_WEIGHT, OverflowPolicy::kDropByWeight},
    {ACCORD_OVERFLOW_DROP_BY_SLOT, OverflowPolicy::kDropBySlot},
});

inline constexpr auto kExpertAlgorithms = std::to_array<NumberRow<ExpertAlgorithm>>({
    {ACCORD_EXPERT_AUTO, ExpertAlgorithm::kAuto},
    {ACCORD_EXPERT_DIRECT, ExpertAlgorithm::kDirect},
    {ACCORD_EXPERT_ALL_TO_ALL, ExpertAlgorithm::kAllToAll},
    {ACCORD_EXPERT_HIERARCHICAL, ExpertAlgorithm::kHierarchical},
});

inline constexpr auto kFinishReasons = std::to_array<NumberRow<FinishReason>>({
    {ACCORD_FINISH_STOP_TOKEN, FinishReason::kStopToken},
    {ACCORD_FINISH_STOP_SEQUENCE, FinishReason::kStopSequence},
    {ACCORD_FINISH_LENGTH, FinishReason::kLength},
    {ACCORD_FINISH_CANCELLED, FinishReason::kCancelled},
    {ACCORD_FINISH_ERROR, FinishReason::kError},
});

/// A kind of call. The two directions of a message are separate kinds, and so are the forms with counts.
struct CallKind {
  Collective collective;
  Direction direction = Direction::kNone;
  Division division = Division::kEqual;
  bool operator==(const CallKind&) const = default;
};

inline constexpr auto kCallKinds = std::to_array<NumberRow<CallKind>>({
    {ACCORD_CALL_BARRIER, {Collective::kBarrier}},
    {ACCORD_CALL_BROADCAST, {Collective::kBroadcast}},
    {ACCORD_CALL_ALL_GATHER, {Collective::kAllGather}},
    {ACCORD_CALL_REDUCE_SCATTER, {Collective::kReduceScatter}},
    {ACCORD_CALL_ALL_REDUCE, {Collective::kAllReduce}},
    {ACCORD_CALL_REDUCE, {Collective::kReduce}},
    {ACCORD_CALL_GATHER, {Collective::kGather}},
    {ACCORD_CALL_SCATTER, {Collective::kScatter}},
    {ACCORD_CALL_ALL_TO_ALL, {Collective::kAllToAll}},
    {ACCORD_CALL_SEND, {Collective::kSendRecv, Direction::kSend}},
    {ACCORD_CALL_RECV, {Collective::kSendRecv, Direction::kReceive}},
    {ACCORD_CALL_ALL_GATHER_V, {Collective::kAllGather, Direction::kNone, Division::kByCounts}},
    {ACCORD_CALL_REDUCE_SCATTER_V, {Collective::kReduceScatter, Direction::kNone, Division::kByCounts}},
    {ACCORD_CALL_GATHER_V, {Collective::kGather, Direction::kNone, Division::kByCounts}},
    {ACCORD_CALL_SCATTER_V, {Collective::kScatter, Direction::kNone, Division::kByCounts}},
    {ACCORD_CALL_ALL_TO_ALL_V, {Collective::kAllToAll, Direction::kNone, Division::kByCounts}},
});

/// True if the rows are numbered consecutively from `first` and their values are distinct.
template <typename Value, std::size_t kRows>
constexpr bool is_numbered(const std::array<NumberRow<Value>, kRows>& rows, std::int32_t first) {
  for (std::size_t i = 0; i < kRows; ++i) {
    if (rows[i].number != first + static_cast<std::int32_t>(i)) return false;
    for (std::size_t j = 0; j < i; ++j)
      if (rows[i].value == rows[j].value) return false;
  }
  return true;
}
static_assert(is_numbered(kStatusCodes, 0) && is_numbered(kDTypes, 1) && is_numbered(kOps, 0));
static_assert(is_numbered(kDevices, 0) && is_numbered(kStoreRoles, 0) && is_numbered(kStates, 0));
static_assert(is_numbered(kOverflowPolicies, 0) && is_numbered(kExpertAlgorithms, 0));
static_assert(is_numbered(kCallKinds, 1) && is_numbered(kFinishReasons, 1));
static_assert(kStatusCodes.size() == static_cast<std::size_t>(StatusCode::kInternal) + 1, "a StatusCode has no number");
static_assert(kDTypes.size() == kDTypeCount, "a DType has no number in accord.h, or no row here");
static_assert(kOps.size() == kReduceOpCount, "a ReduceOp has no number in accord.h, or no row here");
// Send and recv are one Collective with two kinds; five collectives have parts, and therefore a second form.
static_assert(kCallKinds.size() == kCollectiveCount + 1 + 5, "a Collective has no number in accord.h, or no row here");

/// Returns the value of `number`; nullopt if it is not in the table. Numbers are consecutive, so this takes one
/// comparison.
template <typename Value, std::size_t kRows>
constexpr std::optional<Value> find_value(const std::array<NumberRow<Value>, kRows>& rows, std::int32_t number) {
  const std::int64_t index = std::int64_t{number} - rows.front().number;
  if (index < 0 || index >= static_cast<std::int64_t>(kRows)) return std::nullopt;
  return rows[static_cast<std::size_t>(index)].value;
}

/// Does the same, but fails with kInvalidArgument: "accord_run: dtype 42 is not defined in accord.h, expected 1 to 17".
template <typename Value, std::size_t kRows>
Result<Value> value_of(const std::array<NumberRow<Value>, kRows>& rows, std::int32_t number, std::string_view function,
                       std::string_view what) {
  if (const std::optional<Value> value = find_value(rows, number)) return *value;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}: {} {} is not defined in accord.h, expected {} to {}", function, what, number,
                            rows.front().number, rows.back().number));
}

/// Returns device number `index` of `type`, or an error like that of value_of(): "accord_run: device_index is -1,
/// expected 0 to 32767".
inline Result<Device> device_of(accord_device_t type, std::int32_t index, std::string_view function) {
  ACCORD_ASSIGN_OR_RETURN(const DeviceType known, value_of(kDevices, type, function, "device"));
  if (index < 0 || index > std::numeric_limits<std::int16_t>::max())
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: device_index is {}, expected 0 to {}", function, index,
                                                            std::numeric_limits<std::int16_t>::max()));
  return Device{known, static_cast<std::int16_t>(index)};
}

/// Returns the number of `value`, which must have one.
template <typename Value, std::size_t kRows>
constexpr std::int32_t number_of(const std::array<NumberRow<Value>, kRows>& rows, Value value) {
  for (const NumberRow<Value>& row : rows)
    if (row.value == value) return row.number;
  return -1;
}

}  // namespace accord::c
