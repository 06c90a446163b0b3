#pragma once
// A routing map in device memory, as kernels read it. It equals that of routing.hpp except for the numbering of
// choices: every rank is given the maximum number of tokens, so a choice is (rank * max_tokens + token) * top_k + k.

#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"

namespace accord::expert {

/// ExpertRankCounts, as stored on the device.
struct RankCounts {
  std::int64_t tokens, out_of_range, duplicates, dropped, recv_rows, total_rows;
};

/// Numbers of a map that users may read on the device, in this order (ExpertHandle::on_device()).
struct MapNumbers {
  std::int64_t recv_rows;     ///< on this rank; negative, like all of these, until the map is built
  std::int64_t overflows;     ///< 1: a rank would get more rows than its capacity
  std::int64_t blocked;       ///< 1: nothing is moved for that reason, as the policy is kFail
  std::int64_t bad_ids;       ///< ids of this rank's tokens that are out of range or duplicates
  std::int64_t cut;           ///< rows for which the last call's slot buffer had no room
  std::uint64_t fingerprint;  ///< see expert/fingerprint.hpp; after the numbers that users read by index
};

enum class Dropping : std::uint8_t { kNone, kByWeight, kBySlot };

/// Choices that a block numbers at a time, all of one rank.
inline constexpr int kChunk = 256;

/// Maximum number of partial sums of a token that wait for others. Each waits at the highest bit in which two ids
/// differ, no two wait at the same bit, and ids have no more bits.
inline constexpr int kMaxWaiting = 24;

/// The slots of a place that the rows of one rank fill, relative to the place's first slot.
struct Segment {
  std::int64_t first = 0, last = 0;
  ACCORD_ON_DEVICE std::int64_t rows() const { return last - first; }
};

/// The arguments that all kernels of a step share. Pointers are to memory of the device.
struct Map {
  // The placement (placement.hpp).
  const std::int32_t* first_place = nullptr;    ///< [ranks + 1]
  const std::int32_t* holder = nullptr;         ///< [places]
  const std::int32_t* first_replica = nullptr;  ///< [experts + 1]
  const std::int32_t* replicas = nullptr;       ///< [places]
  int ranks = 1, rank = 0, experts = 0, places = 0;
  int top_k = 1, alignment = 1, max_tokens = 0;
  Dropping dropping = Dropping::kNone;
  int bin_bits = 1;           ///< bits of a key that a pass over the choices finds, if choices are dropped by weight
  std::int64_t capacity = 0;  ///< maximum rows of a rank; 0: unlimited
  std::int64_t max_rows = 0;  ///< maximum rows that this rank may get

  std::int32_t* expert = nullptr;  ///< [choices]
  std::int32_t* place = nullptr;   ///< [choices]
  std::int32_t* slot = nullptr;    ///< [choices]
  float* weight = nullptr;         ///< [choices]; null unless choices are dropped by weight
  /// [chunks + 1, places]: rows of each place in a chunk, then in all chunks before it
  std::int32_t* chunk_rows = nullptr;
  std::int64_t* rows = nullptr;     ///< [places]
  std::int64_t* counts = nullptr;   ///< [places]
  std::int64_t* offsets = nullptr;  ///< [places]
  // Memory of drop_lowest(); null unless choices are dropped by weight.
  std::uint64_t* bins = nullptr;       ///< [places, 1 << bin_bits]: choices by the next bits of their keys
  std::uint64_t* low = nullptr;        ///< [places]: start of the keys that are examined
  std::uint64_t* above = nullptr;      ///< [places]: choices with keys behind those
  std::uint64_t* kept = nullptr;       ///< [places]: choices with keys from the rank's threshold on
  std::uint64_t* threshold = nullptr;  ///< [ranks]
  std::int32_t* sources = nullptr;     ///< [max_rows]: choice in each slot of this rank; -1 for padding
  std::int32_t* order = nullptr;       ///< [max_tokens, top_k]: k of this rank's choices, by expert; -1 after the last
  std::int32_t* merges = nullptr;      ///< [max_tokens, top_k]: additions of two sums to do after this choice
  /// [max_tokens * top_k]: this rank's choices by place, then token; send_first[places] of them
  std::int32_t* sends = nullptr;
  std::int32_t* send_first = nullptr;  ///< [places + 1]: where those of a place begin
  // For rows that travel in collectives of the communicator, otherwise null.
  std::int32_t* sent_at = nullptr;     ///< [max_tokens * top_k]: position in `sends` of each of this rank's choices
  std::int32_t* arrives_at = nullptr;  ///< [ranks, local places]: rows for this rank that arrive before these
  /// [2, ranks]: rows from this rank to each rank, and from each rank to this one; negative until the map is built
  std::int64_t* traffic = nullptr;
  RankCounts* counted = nullptr;  ///< [ranks]
  MapNumbers* numbers = nullptr;

  ACCORD_ON_DEVICE std::int64_t of_rank() const { return std::int64_t{max_tokens} * top_k; }
  ACCORD_ON_DEVICE std::int64_t choices() const { return ranks * of_rank(); }
  ACCORD_ON_DEVICE std::int64_t chunks_of_rank() const { return (of_rank() + kChunk - 1) / kChunk; }
  ACCORD_ON_DEVICE std::int64_t chunks() const { return ranks * chunks_of_rank(); }
  ACCORD_ON_DEVICE int rank_of(std::int64_t choice) const { return static_cast<int>(choice / of_rank()); }
  /// Token within its rank.
  ACCORD_ON_DEVICE std::int64_t token_of(std::int64_t choice) const { return choice / top_k % max_tokens; }
  ACCORD_ON_DEVICE std::int64_t my_choice(std::int64_t token, int k) const {
    return (std::int64_t{rank} * max_tokens + token) * top_k + k;
  }
  ACCORD_ON_DEVICE std::int64_t padded(std::int64_t n) const { return (n + alignment - 1) / alignment * alignment; }
  ACCORD_ON_DEVICE bool overflows(int r) const { return capacity > 0 && counted[r].total_rows > capacity; }
  ACCORD_ON_DEVICE int local_places() const { return first_place[rank + 1] - first_place[rank]; }
  /// Whether rows are moved: the map was built, and does not overflow under kFail.
  ACCORD_ON_DEVICE bool moves_rows() const { return numbers->recv_rows >= 0 && numbers->blocked == 0; }
  /// The rows that rank `r` sends to place `p`.
  ACCORD_ON_DEVICE Segment segment(int r, std::int32_t p) const {
    const std::int32_t* const before = chunk_rows + r * chunks_of_rank() * places + p;
    const std::int64_t first = before[0], last = before[chunks_of_rank() * places], all = rows[p];
    return {first < all ? first : all, last < all ? last : all};
  }
};

}  // namespace accord::expert
