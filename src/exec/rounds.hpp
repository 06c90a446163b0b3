#pragma once
// How a message is cut into rounds: a slice of every chunk in each of them.

#include <cstddef>
#include <cstdint>

#include "accord/status.hpp"
#include "exec/domain.hpp"
#include "exec/operand.hpp"
#include "exec/request_record.hpp"
#include "plan/bounds.hpp"
#include "plan/plan.hpp"

namespace accord::exec {

/// The layout of the members' shared memory, for lowering: the offsets of flags and packets among the lines of
/// a round, and the sizes.
struct SharedPlaces {
  int members = 0;
  int signals = 0;  ///< ids for each pair of members
  int packet_chunks = 0;
  std::size_t slot_bytes = 0;
  std::size_t multicast_bytes = 0;  ///< of a slot of multicast memory; 0: there is no such memory
  std::size_t line = kLine;         ///< scratch chunks are at multiples of it
  std::size_t flag_stride = kLine;
  std::size_t packets = 0;                        ///< offset of the first packet chunk
  std::size_t packets_stride = 0;                 ///< from one to the next
  std::size_t packet_capacity = kPacketCapacity;  ///< data bytes per packet chunk
  std::size_t packet_data = kPacketData;          ///< data bytes per packet
  bool cells = true;                              ///< small packets may be in cells
  std::size_t max_slice = SIZE_MAX;               ///< maximum bytes of a chunk per round
};
SharedPlaces places_of(const DomainLayout& layout);

/// The data to move, if they differ from the request's count and dtype.
struct Payload {
  DType dtype = DType::kFloat32;
  plan::Bounds bounds;
};

/// A function of the plan's counts and of the message, equal on all members.
struct Rounds {
  std::uint64_t slice = 1;  ///< elements of each chunk handled by one round
  std::uint64_t count = 1;  ///< at least 1
  std::uint32_t depth = 1;  ///< rounds that may be in flight at once
  Packets packets = Packets::kLines;
  std::size_t packet_data = kPacketData;  ///< bytes of a packet before its word
  std::size_t elements_per_line = 1;      ///< of a packet
  std::size_t scratch_stride = 0;         ///< bytes from one chunk to the next
  std::size_t multicast_stride = 0;
};

/// `slot_bytes`: the scratch that a round may use, at most the layout's; for plans that access members' buffers and
/// need no scratch, the bytes of each chunk per round. Fails with kInvalidArgument if the plan does not fit the domain
/// (members, signals, scratch), with kUnsupported if it needs multicast and there is none.
Result<Rounds> rounds_of(const plan::Plan& plan, const SharedPlaces& places, std::size_t slot_bytes,
                         const Payload& payload);

/// Elements that a step handles over all rounds: those of the caller's chunk in it; between scratch chunks, the longest
/// chunk.
std::uint64_t length_of(const plan::Step& step, const plan::Bounds& bounds);

/// Number of scratch chunks in the room of a chunk of partials.
std::size_t partial_width(DType dtype);

}  // namespace accord::exec
