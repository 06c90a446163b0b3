// Names of dtypes, reductions and devices. Each kind has one table, indexed by the enum's value and read in both
// directions.
#include "accord/buffer.hpp"

#include <array>

#include "base/text.hpp"

namespace accord {
namespace {

constexpr std::array<std::string_view, kDTypeCount> kDTypeNames = {
    "int8",     "int16",   "int32",   "int64",         "uint8",       "uint16",    "uint32",     "uint64", "float16",
    "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128", "bool"};
constexpr std::array<std::string_view, kReduceOpCount> kReduceOpNames = {"sum", "product", "min", "max",       "band",
                                                                         "bor", "bxor",    "avg", "premul_sum"};

template <typename Enum, std::size_t kCount>
Result<Enum> from_name(std::string_view what, std::string_view name,
                       const std::array<std::string_view, kCount>& names) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return unknown_name(what, name, names);
}

template <std::size_t kCount>
std::string_view name_at(std::size_t index, const std::array<std::string_view, kCount>& names) {
  return index < kCount ? names[index] : std::string_view("unknown");
}

}  // namespace

std::string_view to_string(DType dtype) { return name_at(static_cast<std::size_t>(dtype), kDTypeNames); }

Result<DType> dtype_from_string(std::string_view name) { return from_name<DType>("dtype", name, kDTypeNames); }

std::string_view to_string(ReduceOp op) { return name_at(static_cast<std::size_t>(op), kReduceOpNames); }

Result<ReduceOp> reduce_op_from_string(std::string_view name) {
  return from_name<ReduceOp>("reduction", name, kReduceOpNames);
}

std::string to_string(Device device) {
  if (device.type == DeviceType::kCpu) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

}  // namespace accord
