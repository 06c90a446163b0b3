#pragma once
// The arithmetic of NCCL's reductions, one element at a time.

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "device/nccl_abi.hpp"

namespace accord::testing::nccl {

/// A scalar of any dtype, in its first bytes.
using Scalar = std::array<std::byte, 8>;

/// 0 for what is no dtype.
std::size_t size_of(ncclDataType_t dtype);
/// "float32", ...
std::string_view name_of(ncclDataType_t dtype);

/// to[i] = from[0][i] op from[1][i] op ..., in that order. Floats of 8 and 16 bits are combined as float32 and rounded once, to nearest
/// even; beyond the largest they become infinity, in float8e4m3, which has none, that largest. ncclAvg divides the sum by the number of
/// sources, integers toward zero. `factors`: one for each source if `op` is from ncclNumOps up, which multiply them first.
void reduce(void* to, std::span<const void* const> from, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
            const std::vector<Scalar>& factors);

}  // namespace accord::testing::nccl
