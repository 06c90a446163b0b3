#pragma once
// Memory that a call works on: its location, element type and size.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord {

/// Element types, with the names used by NumPy and PyTorch. A bool is a byte that holds 0 or 1.
enum class DType : std::uint8_t {
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kComplex64,
  kComplex128,
  kBool,
};
inline constexpr int kDTypeCount = 17;

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kBool: return 1;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kInt32:
    case DType::kUInt32:
    case DType::kFloat32: return 4;
    case DType::kInt64:
    case DType::kUInt64:
    case DType::kFloat64:
    case DType::kComplex64: return 8;
    case DType::kComplex128: return 16;
  }
  return 0;
}

/// The kind of arithmetic that a dtype supports.
enum class DTypeKind : std::uint8_t { kInteger, kFloat, kComplex, kBool };

constexpr DTypeKind kind_of(DType dtype) {
  if (dtype <= DType::kUInt64) return DTypeKind::kInteger;
  if (dtype <= DType::kFloat8E5M2) return DTypeKind::kFloat;
  return dtype == DType::kBool ? DTypeKind::kBool : DTypeKind::kComplex;
}

/// "float32", "bfloat16", "int64", ...
std::string_view to_string(DType dtype);
/// The inverse of to_string. An unknown name fails with kInvalidArgument, which names the nearest one.
Result<DType> dtype_from_string(std::string_view name);

/// How a reduction combines the values of several ranks. docs/communicator.md lists the effect of each op on each
/// dtype.
enum class ReduceOp : std::uint8_t {
  kSum,
  kProduct,
  kMin,
  kMax,
  kBand,  ///< bitwise and
  kBor,
  kBxor,
  kAvg,        ///< the sum divided by the number of ranks, rounded once after the division
  kPremulSum,  ///< the sum of the inputs, each multiplied by its rank's own factor: Reduction::premul_sum
};
inline constexpr int kReduceOpCount = 9;

/// Whether `op` is defined for `dtype`. A call with an undefined combination is rejected before anything is sent.
constexpr bool is_defined(ReduceOp op, DType dtype) {
  const DTypeKind kind = kind_of(dtype);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct: return true;
    case ReduceOp::kMin:
    case ReduceOp::kMax: return kind != DTypeKind::kComplex;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor: return kind == DTypeKind::kInteger || kind == DTypeKind::kBool;
    case ReduceOp::kAvg: return kind != DTypeKind::kBool;
    case ReduceOp::kPremulSum: return kind == DTypeKind::kFloat || kind == DTypeKind::kComplex;
  }
  return false;
}

std::string_view to_string(ReduceOp op);
Result<ReduceOp> reduce_op_from_string(std::string_view name);

enum class DeviceType : std::uint8_t { kCpu, kCuda };
inline constexpr int kDeviceTypeCount = 2;

/// Where memory is located.
struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int16_t index = 0;
  bool operator==(const Device&) const = default;
};

/// "cpu" or "cuda:1".
std::string to_string(Device device);

/// An order of execution on a device (a cudaStream_t). The null handle is the device's default stream. Ignored for
/// CPU memory.
struct Stream {
  void* handle = nullptr;
};

/// `count` contiguous elements of `dtype` at `data`. The caller keeps the memory alive until the call (or its Work)
/// is done.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kFloat32;
  Device device = {};

  std::size_t bytes() const { return count * size_of(dtype); }
};

/// A Buffer that is only read.
struct ConstBuffer {
  const void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kFloat32;
  Device device = {};

  ConstBuffer() = default;
  ConstBuffer(const void* data_, std::size_t count_, DType dtype_, Device device_ = {})
      : data(data_), count(count_), dtype(dtype_), device(device_) {}
  ConstBuffer(const Buffer& buffer)
      : data(buffer.data), count(buffer.count), dtype(buffer.dtype), device(buffer.device) {}

  std::size_t bytes() const { return count * size_of(dtype); }
};

}  // namespace accord
