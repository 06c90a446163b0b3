#pragma once
// A routing map in the memory of a device: what kernels read of it. It is that of routing.hpp, but for the numbering of choices: each rank
// has the most tokens that it may have, (rank * max_tokens + token) * top_k + k.

#include <cstddef>
#include <cstdint>

#include "device/kernel.hpp"

namespace accord::expert {

/// ExpertRankCounts.
struct RankCounts {
  std::int64_t tokens, out_of_range, duplicates, dropped, recv_rows, total_rows;
};

/// Numbers of a map that its users may read on the device, in this order (ExpertHandle::on_device()).
struct MapNumbers {
  std::int64_t recv_rows;     ///< on this rank; negative, as all of these, until the map is made
  std::int64_t overflows;     ///< 1: a rank would get more rows than its capacity
  std::int64_t blocked;       ///< 1: so nothing is moved, as the policy is kFail
  std::int64_t bad_ids;       ///< of this rank's tokens: out of range, or duplicates
  std::int64_t cut;           ///< rows that the last call's buffer of slots had no room for
  std::uint64_t fingerprint;  ///< see expert/fingerprint.hpp; behind those that users read by number
};

enum class Dropping : std::uint8_t { kNone, kByWeight, kBySlot };

/// Choices that a block numbers at a time.
inline constexpr int kChunk = 256;

/// The most sums of a token that wait for others: each at the highest bit in which two ids differ, no two at the same, and ids have no more.
inline constexpr int kMostWaiting = 24;

struct Map {
  // The placement (placement.hpp).
  const std::int32_t* first_place = nullptr;    ///< [ranks + 1]
  const std::int32_t* holder = nullptr;         ///< [places]
  const std::int32_t* first_replica = nullptr;  ///< [experts + 1]
  const std::int32_t* replicas = nullptr;       ///< [places]
  int ranks = 1, rank = 0, experts = 0, places = 0;
  int top_k = 1, alignment = 1, max_tokens = 0;
  Dropping dropping = Dropping::kNone;
  std::int64_t capacity = 0;   ///< rows of a rank; 0: none
  std::int64_t most_rows = 0;  ///< that this rank may get

  std::int32_t* expert = nullptr;  ///< [choices]
  std::int32_t* place = nullptr;   ///< [choices]
  std::int32_t* slot = nullptr;    ///< [choices]
  float* weight = nullptr;         ///< [choices], where choices are dropped by it
  std::int32_t* chunk_rows =
      nullptr;                      ///< [chunks, places]: rows of each place in a chunk, then in all chunks before it
  std::int64_t* rows = nullptr;     ///< [places]
  std::int64_t* counts = nullptr;   ///< [places]
  std::int64_t* offsets = nullptr;  ///< [places]
  std::uint64_t* kept = nullptr;    ///< [places]: rows that are not dropped by weight
  std::uint64_t* threshold = nullptr;  ///< [ranks]: the lowest key that is kept, 0 where nothing is dropped
  std::int32_t* sources = nullptr;     ///< [most_rows]: the choice in each slot of this rank, -1 for padding
  std::int32_t* order = nullptr;       ///< [max_tokens, top_k]: k of this rank's choices, by expert; -1 behind the last
  std::int32_t* merges = nullptr;      ///< [max_tokens, top_k]: how often sums are added once that one is there
  RankCounts* counted = nullptr;       ///< [ranks]
  MapNumbers* numbers = nullptr;

  ACCORD_ON_DEVICE std::int64_t choices() const { return std::int64_t{ranks} * max_tokens * top_k; }
  ACCORD_ON_DEVICE std::int64_t chunks() const { return (choices() + kChunk - 1) / kChunk; }
  ACCORD_ON_DEVICE int rank_of(std::int64_t choice) const {
    return static_cast<int>(choice / (std::int64_t{max_tokens} * top_k));
  }
  /// Of its rank.
  ACCORD_ON_DEVICE std::int64_t token_of(std::int64_t choice) const { return choice / top_k % max_tokens; }
  ACCORD_ON_DEVICE std::int64_t my_choice(std::int64_t token, int k) const {
    return (std::int64_t{rank} * max_tokens + token) * top_k + k;
  }
  ACCORD_ON_DEVICE std::int64_t padded(std::int64_t n) const { return (n + alignment - 1) / alignment * alignment; }
  ACCORD_ON_DEVICE bool overflows(int r) const { return capacity > 0 && counted[r].total_rows > capacity; }
};

}  // namespace accord::expert
