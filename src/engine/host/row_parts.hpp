#pragma once
// Divides rows among threads.

#include "engine/host/run.hpp"

namespace accord::engine {

inline constexpr std::int64_t kMinRowsToSplit = 32;

/// Calls body(PartRange of rows) on one thread, or on all of them if there are enough rows.
template <typename Body>
Status for_rows(const Execution& execution, std::int64_t rows, const Body& body) {
  const int parts = rows < kMinRowsToSplit ? 1 : host::pool_of(execution).threads();
  return host::pool_of(execution).run(parts, [&](int part) {
    body(part_range(rows, 1, part, parts));
    return Status();
  });
}

}  // namespace accord::engine
