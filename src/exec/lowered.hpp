#pragma once
// A rank's program with all symbols resolved: the executor's input.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "accord/buffer.hpp"
#include "exec/domain.hpp"
#include "exec/operand.hpp"
#include "exec/partial_sums.hpp"
#include "exec/rounds.hpp"
#include "kernels/reduce/reduce.hpp"
#include "plan/bounds.hpp"
#include "plan/plan.hpp"

namespace accord::exec {

enum class Opcode : std::uint8_t {
  kCopy,
  kCopyFromPeer,  ///< by the kernel, from `peer`'s input in its own memory
  kReduce,
  kSignal,
  kWait,
  kSignalPlaces,  ///< the same, with the location of the rank's buffers
  kWaitPlaces,    ///< the same from the peer
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

/// One resolved step.
struct LoweredStep {
  Opcode opcode = Opcode::kCopy;
  std::uint16_t sources = 0;       ///< number of operands from first_source
  std::uint32_t first_source = 0;  ///< into LoweredPlan::operands
  std::int32_t peer = -1;          ///< the member that is signalled or waited for
  std::uint32_t barrier = 0;
  std::uint64_t length = 0;  ///< elements of the chunk over all rounds
  Operand destination;
  Operand mirror;  ///< second destination
  bool has_mirror = false;
};

/// Ready to run for one request: any buffers, one count.
struct LoweredPlan {
  std::uint64_t number = 0;  ///< unique among the results of lower() in this process; counted from 1
  std::vector<std::vector<LoweredStep>> lanes;
  std::vector<Operand> operands;
  std::uint64_t slice = 0;   ///< elements of each chunk handled by one round
  std::uint64_t rounds = 1;  ///< at least 1
  std::size_t element_bytes = 1;
  Packets packets = Packets::kLines;
  std::size_t packet_data = kPacketData;  ///< bytes of a packet before its word
  std::size_t elements_per_line = 0;      ///< of a packet
  kernels::ReduceKernel reduce = nullptr;
  PartialKernels partials;  ///< for plans that need them
  bool scales = false;      ///< `reduce` multiplies source i by the factor of member i
  std::uint32_t signature = 1;
  RequestRecord record;
  bool in_windows = false;           ///< it accesses the buffers of other members
  bool reads = false;                ///< those are in the members' own memory, from which it copies
  std::uint32_t depth = kLineDepth;  ///< number of rounds that may be in flight at once
  bool reaches_all = false;          ///< at its end every peer is known to have begun the round
  std::uint32_t barriers = 0;
  int max_sources = 0;
};

/// Lowers the program of member `me`. `slot_bytes`: the scratch that a round may use, at most the layout's; for plans
/// that access members' buffers and need no scratch, the bytes of each chunk per round. Fails with kUnsupported if
/// the dtype and op have no kernel, or if the op is avg or premul_sum and the plan adds in parts; with
/// kInvalidArgument if the plan does not fit the domain (members, signals, scratch).
Result<LoweredPlan> lower(const plan::Plan& plan, int me, const DomainLayout& layout, std::size_t slot_bytes,
                          const RequestRecord& request);

/// The same for data that differ from the request's.
Result<LoweredPlan> lower(const plan::Plan& plan, int me, const DomainLayout& layout, std::size_t slot_bytes,
                          const RequestRecord& request, Payload payload);
Result<LoweredPlan> lower(const plan::Plan& plan, int me, const SharedPlaces& places, std::size_t slot_bytes,
                          const RequestRecord& request, Payload payload);

}  // namespace accord::exec
