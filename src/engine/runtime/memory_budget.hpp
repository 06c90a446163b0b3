#pragma once
// How much memory an engine may use, and how much it has taken.

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord::engine {

// The parts of an engine's limit that contexts use.
inline constexpr const char* kArenas = "arenas";
inline constexpr const char* kCaches = "caches of keys and values";
inline constexpr const char* kTokenChoices = "choices of tokens";

/// Memory that a process may still use: the least that the machine and its control groups have left.
struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string limited_by;  ///< "the machine", "the control group"
};

/// Returns what this machine, and the control groups of this process, have left (file pages count as free). `root`: a
/// folder that holds proc and sys; empty: this machine's.
Result<AvailableMemory> available_memory(const std::string& root = "");

/// One item of an engine's memory.
struct MemoryPart {
  std::string what;  ///< "weights", "arena at batch=64"
  std::uint64_t bytes = 0;
};

/// The memory that an engine, or several engines that share the budget, have taken of a limit. Thread-safe.
class MemoryBudget {
 public:
  /// `limit` 0: only what is available limits it.
  explicit MemoryBudget(std::uint64_t limit = 0) : limit_(limit) {}

  std::uint64_t limit() const { return limit_; }
  /// Returns the bytes that are left; those of the machine if there is no limit.
  Result<std::uint64_t> left() const;
  /// Fails with kResourceExhausted, naming all parts, if `more` does not fit beside what is already taken.
  Status check(std::span<const MemoryPart> more) const;
  /// Counts `part`. Fails as check() does if there is a limit and the part does not fit.
  Status reserve(const MemoryPart& part);
  void release(const MemoryPart& part);

 private:
  Status check_locked(std::span<const MemoryPart> more) const;
  std::uint64_t taken() const;
  Status over_budget(std::span<const MemoryPart> more, std::uint64_t max_bytes, const std::string& limited_by) const;

  std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::vector<MemoryPart> parts_;  // one entry per `what`
};

}  // namespace accord::engine
