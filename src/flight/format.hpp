#pragma once
// Layout of a flight recorder in memory that other processes may read while it is written.
//
// A process has one anonymous file (kFileName in /proc/PID/fd). It begins with a FileHeader. The records follow one
// after the other, one for each communicator of a rank in this process; each begins with a RecordHeader that contains
// its length. After the RecordHeader come:
//
//   peers       RecordPeer for each rank
//   in use      one byte for each order: it has been used, and its block may be read
//   blocks      one for each order of operations: BlockHeader, then a ring of `capacity` operations of 64 bytes
//
// Order 0 is that of the collectives, 1 + 2p that of the messages to rank p, 2 + 2p that of the messages from it.
// Everything that changes is a word that is read and written atomically.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "accord/call.hpp"

namespace accord::flight {

inline constexpr char kFileName[] = "accord-flight";
inline constexpr std::uint64_t kFileMagic = 0x31'74'68'67'69'6c'66'61;    // "aflight1"
inline constexpr std::uint64_t kRecordMagic = 0x31'64'72'6f'63'65'72'61;  // "arecord1"
inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kMaxAlgorithms = 64;
inline constexpr std::size_t kMaxCollectives = 24;
static_assert(kCollectiveCount <= static_cast<int>(kMaxCollectives));

/// The only access to a word that may change.
inline std::atomic_ref<std::uint64_t> word(const std::uint64_t& place) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(place));
}

struct FileHeader {
  std::uint64_t magic = 0;  ///< stored last
  std::int64_t process = 0;
  std::uint64_t tick_source = 0;
  std::uint64_t ticks = 0;  ///< a Moment
  std::int64_t monotonic_ns = 0;
  std::int64_t unix_ns = 0;
  std::uint64_t end = 0;  ///< changes: bytes of the file in use, including this header
};
static_assert(sizeof(FileHeader) <= kPage);

/// Where a rank of a communicator runs.
struct RecordPeer {
  std::int32_t process = 0;
  std::int32_t host = 0;  ///< number of its host within the communicator
};

using AlgorithmName = std::array<char, 48>;

struct RecordHeader {
  std::uint64_t magic = 0;
  std::uint64_t bytes = 0;  ///< including this header
  /// Changes: odd while there is a communicator, which is when the rest is valid; incremented when it ends.
  std::uint64_t life = 0;
  std::uint64_t id = 0;  ///< of the communicator, equal on its ranks and different from all others
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint64_t capacity = 0;  ///< operations of each ring, a power of two
  std::uint64_t created = 0;   ///< ticks
  std::uint64_t state = 0;     ///< changes: CommunicatorState
  /// Changes: ticks of the first failure, 0 before. The failure's other fields are stored before it.
  std::uint64_t failed = 0;
  std::uint32_t failure_code = 0;
  std::uint32_t failure_rank_count = 0;
  std::array<std::int32_t, 8> failure_ranks = {};
  std::array<char, 1024> failure = {};
  std::array<char, 256> name = {};
  std::array<char, 256> host = {};
  std::uint64_t algorithm_count = 0;  ///< changes: names are stored before they are counted
  std::array<AlgorithmName, kMaxAlgorithms> algorithms = {};
};

/// Counters of one order.
struct alignas(64) BlockHeader {
  std::uint64_t failures = 0;
  std::uint64_t waits = 0;   ///< operations that waited long, see Counters
  std::uint64_t queued = 0;  ///< operations that were queued behind others
  std::array<std::array<std::uint64_t, 2>, kMaxCollectives> calls_and_bytes = {};
};

enum class OperationState : std::uint64_t { kBeingWritten = 1, kQueued = 2, kRunning = 4, kDone = 6, kFailed = 8 };

/// One operation. `stamp` is (its number << 8) | state. The fields belong to the stamp if it is the same before and
/// after they are read. They are stored with release and read with acquire, so that a reader of a newer field finds a
/// newer stamp.
struct alignas(64) OperationSlot {
  std::uint64_t stamp = 0;
  std::array<std::uint64_t, 3> request = {};  ///< an exec::RequestRecord
  std::uint64_t started = 0;                  ///< ticks; 0 while unknown. May be stored after the state
  std::uint64_t ended = 0;                    ///< ticks
  std::uint64_t queued = 0;                   ///< ticks; 0 if it was not queued
  /// Low half: 1 + the algorithm's index among the names, 0 while there is none. High half: 1 + the rank that it
  /// waits for, 0 if unknown. Both may be stored later.
  std::uint64_t algorithm_and_rank = 0;
};
static_assert(sizeof(OperationSlot) == 64);

/// Offsets within a record.
struct RecordLayout {
  std::size_t peers = 0;
  std::size_t in_use = 0;
  std::size_t blocks = 0;
  std::size_t block_bytes = 0;
  std::size_t orders = 0;
  std::size_t bytes = 0;  ///< whole pages

  /// REQUIRES: size is that of a communicator, capacity a power of two.
  static constexpr RecordLayout of(std::size_t size, std::size_t capacity) {
    RecordLayout layout;
    layout.orders = 1 + 2 * size;
    layout.peers = sizeof(RecordHeader);
    layout.in_use = layout.peers + size * sizeof(RecordPeer);
    layout.blocks = (layout.in_use + layout.orders + 63) / 64 * 64;
    layout.block_bytes = sizeof(BlockHeader) + capacity * sizeof(OperationSlot);
    layout.bytes = (layout.blocks + layout.orders * layout.block_bytes + kPage - 1) / kPage * kPage;
    return layout;
  }
  std::size_t block(std::size_t order) const { return blocks + order * block_bytes; }
  std::size_t slot(std::size_t order, std::uint64_t number, std::uint64_t capacity) const {
    return block(order) + sizeof(BlockHeader) + (number & (capacity - 1)) * sizeof(OperationSlot);
  }
};

}  // namespace accord::flight
