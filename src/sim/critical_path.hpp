#pragma once
// Where the time of a simulation goes: the chain of operations that leads to the last one, each with what it waited for
// last. Any of them that becomes shorter makes the whole shorter, until another chain is the longest.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/journal.hpp"

namespace accord::sim {

enum class PathPart : std::uint8_t {
  kCompute,  ///< what ranks do beside communication
  kWork,     ///< copies and reductions
  kSends,    ///< the processor's part of messages
  kSteps,    ///< the processor's part of signals and waits
  kNetwork,  ///< data and signals between hosts, under way or behind others
  kSignals,  ///< signals and packets within a host, under way
  kRounds,   ///< until other ranks had completed an earlier round
  kCores,    ///< until a core was free
  kCalls,    ///< before the first operation of a call
};
inline constexpr std::size_t kPathParts = 9;

/// "copies and reductions".
std::string_view to_string(PathPart part);

struct PathStep {
  std::uint32_t entry = 0;  ///< of the journal
  double waited = 0;        ///< seconds after the end of the step before it
};

struct CriticalPath {
  std::vector<PathStep> steps;               ///< in the order of time
  std::array<double, kPathParts> seconds{};  ///< by part; their sum is the end of the last step

  double of(PathPart part) const { return seconds[static_cast<std::size_t>(part)]; }
};

/// Cost: one step back for each step of the path, after a look at all entries.
CriticalPath critical_path(const Journal& journal);

}  // namespace accord::sim
