#pragma once
// The arithmetic of NCCL's reductions, one element at a time.

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "device/nccl_abi.hpp"

namespace accord::testing::nccl {

/// A scalar of any dtype, in the first bytes.
using Scalar = std::array<std::byte, 8>;

/// Returns the bytes of an element; 0 for an invalid dtype.
std::size_t size_of(ncclDataType_t dtype);
/// Returns the name: "float32", ...
std::string_view name_of(ncclDataType_t dtype);

/// Computes to[i] = from[0][i] op from[1][i] op ..., in that order. Floats of 8 and 16 bits are combined as float32
/// and rounded once, to nearest even. Values beyond the largest become infinity, or the largest value in float8e4m3,
/// which has no infinity. ncclAvg divides the sum by the number of sources; integers round toward zero. `factors`:
/// one for each source if `op` is from ncclNumOps up; they multiply the sources first.
void reduce(void* to, std::span<const void* const> from, std::size_t count, ncclDataType_t dtype, ncclRedOp_t op,
            const std::vector<Scalar>& factors);

}  // namespace accord::testing::nccl
