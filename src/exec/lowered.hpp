#pragma once
// A rank's program with everything looked up: what the executor runs.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "accord/buffer.hpp"
#include "exec/domain.hpp"
#include "exec/partial_sums.hpp"
#include "kernels/reduce.hpp"
#include "plan/bounds.hpp"
#include "plan/plan.hpp"

namespace accord::exec {

enum class Opcode : std::uint8_t {
  kCopy,
  kReduce,
  kSignal,
  kWait,
  kPutPackets,
  kCopyPackets,     ///< packets -> memory
  kReducePackets,   ///< packets and memory -> memory, line by line
  kReducePartials,  ///< elements and accumulators -> elements and accumulators
  kLaneBarrier,
  // The destination is in the block of a remote member (remote_steps.hpp).
  kPutRemote,
  kSignalRemote,
  kPutPacketsRemote,
};

/// An address that is known but for its base: bases are the caller's input and output, then of each member the lines and the slot
/// of the round.
struct Operand {
  static constexpr std::uint16_t kInput = 0;
  static constexpr std::uint16_t kOutput = 1;
  static constexpr std::uint16_t lines_of(Rank member) { return static_cast<std::uint16_t>(2 + 2 * member); }
  static constexpr std::uint16_t slot_of(Rank member) { return static_cast<std::uint16_t>(3 + 2 * member); }

  std::uint64_t offset = 0;
  std::uint16_t base = 0;
  bool packets = false;
  bool partial = false;      ///< holds accumulators that are not elements
  std::int32_t sender = -1;  ///< who puts the packets

  /// Whose window it lies in, and whether in the slot there. REQUIRES: is_shared().
  int member() const { return (base - 2) / 2; }
  bool in_slot() const { return base % 2 != 0; }
  /// In a member's window, where peers read.
  bool is_shared() const { return base > kOutput; }
};

/// One resolved step.
struct LoweredStep {
  Opcode opcode = Opcode::kCopy;
  std::uint16_t sources = 0;       ///< how many operands from first_source
  std::uint32_t first_source = 0;  ///< into LoweredPlan::operands
  std::int32_t peer = -1;          ///< the member waited for, for messages
  std::uint32_t barrier = 0;
  std::uint64_t length = 0;  ///< elements of the chunk over all rounds
  Operand destination;
  Operand mirror;  ///< second destination
  bool has_mirror = false;
};

/// Ready to run for one request: any buffers, one count.
struct LoweredPlan {
  std::vector<std::vector<LoweredStep>> lanes;
  std::vector<Operand> operands;
  std::uint64_t slice = 0;   ///< elements that one round handles of each chunk
  std::uint64_t rounds = 1;  ///< at least 1
  std::size_t element_bytes = 1;
  std::size_t elements_per_line = 0;  ///< of a packet
  kernels::ReduceKernel reduce = nullptr;
  PartialKernels partials;  ///< of plans that need them
  bool scales = false;      ///< `reduce` multiplies source i by the factor of member i
  std::uint32_t signature = 1;
  RequestRecord record;
  std::uint32_t depth = kLineDepth;  ///< rounds that may be under way at once
  bool heard_all = false;            ///< at its end every peer is known to have begun the round
  std::uint32_t barriers = 0;
  int max_sources = 0;
};

/// Lowers the program of member `me`. `slot_bytes`: the scratch that a round may use, at most the layout's. kUnsupported if the dtype
/// and op have no kernel, or if the op is avg or premul_sum and the plan adds up in parts; kInvalidArgument if the plan does not fit the domain (members, signals, scratch).
Result<LoweredPlan> lower(const plan::Plan& plan, int me, const DomainLayout& layout, std::size_t slot_bytes,
                          const RequestRecord& request);

/// What is moved, where it is not the request's count of the request's dtype.
struct Payload {
  DType dtype = DType::kFloat32;
  plan::Bounds bounds;
};
Result<LoweredPlan> lower(const plan::Plan& plan, int me, const DomainLayout& layout, std::size_t slot_bytes,
                          const RequestRecord& request, Payload payload);

}  // namespace accord::exec
