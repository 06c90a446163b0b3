#pragma once
// Properties of each collective: one row of a table, so that no other place has to list them.

#include <cstdint>
#include <string_view>

#include "accord/call.hpp"

namespace accord::plan {

/// The ranks that have a buffer.
enum class Holders : std::uint8_t { kNobody, kAll, kRoot, kAllButRoot };

/// A caller's buffer as the collective sees it.
struct BufferRole {
  Holders holders = Holders::kNobody;
  bool divided = false;  ///< one part of `count` elements per rank, in rank order; otherwise `count` elements
};

struct CollectiveTraits {
  std::string_view name;  ///< "all_reduce"
  BufferRole input;
  BufferRole output;
  bool reduces = false;
  bool rooted = false;
  bool one_buffer = false;  ///< input and output are always the same memory
};

const CollectiveTraits& traits_of(Collective collective);

/// Whether `rank` has that buffer.
inline bool holds(const BufferRole& role, Rank rank, Rank root) {
  switch (role.holders) {
    case Holders::kNobody: return false;
    case Holders::kAll: return true;
    case Holders::kRoot: return rank == root;
    case Holders::kAllButRoot: return rank != root;
  }
  return false;
}

}  // namespace accord::plan
