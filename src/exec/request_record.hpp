#pragma once
// A rank's request, as its peers see it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "accord/buffer.hpp"
#include "accord/call.hpp"

namespace accord::exec {

/// The purpose of a round.
enum class Phase : std::uint8_t {
  kEqualParts,    ///< a call whose parts have equal counts, or that has no parts
  kCountsFirst,   ///< the ranks exchange the counts of the parts
  kUnequalParts,  ///< the call itself, once all ranks know the longest part
  kRegistered,    ///< like kEqualParts, and all buffers of the rank are in windows of the group
};

constexpr bool has_equal_parts(Phase phase) { return phase == Phase::kEqualParts || phase == Phase::kRegistered; }

/// A rank's current request, which peers can read for diagnosis.
struct RequestRecord {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Phase phase = Phase::kEqualParts;
  Rank root = 0;            ///< for a message: its tag
  std::uint64_t count = 0;  ///< of a buffer, or of one part; of the longest part; kCountsFirst: 0
  /// kUnequalParts: a hash of the counts, if every rank was given all of them. kRegistered, on devices: a hash of the
  /// algorithm.
  std::uint64_t parts = 0;
  bool operator==(const RequestRecord&) const = default;
};
static_assert(sizeof(RequestRecord) == 24, "travels as three words");
using RequestWords = std::array<std::uint64_t, 3>;

/// "all_reduce", "all_to_all_v".
std::string name_of(const RequestRecord& record);
/// "all_reduce of 4096 x float32 (sum)", "all_to_all_v of up to 4096 x float32".
std::string to_string(const RequestRecord& record);
/// The same for a call that is known by another name: "send of 4096 x float32".
std::string to_string(const RequestRecord& record, std::string_view name);

}  // namespace accord::exec
