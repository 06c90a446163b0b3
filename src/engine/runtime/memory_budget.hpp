#pragma once
// How much memory an engine may take, and what it has taken.

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord::engine {

/// What a process may still take, of whatever has least left.
struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string whose;  ///< "the machine", "the control group"
};

/// Of this machine, and of the control groups that this process is in (pages of files count as free). `root`: a folder that holds
/// proc and sys; empty: this machine's.
Result<AvailableMemory> available_memory(const std::string& root = "");

/// A part of what an engine takes.
struct MemoryPart {
  std::string what;  ///< "weights", "arena at batch=64"
  std::uint64_t bytes = 0;
};

/// What an engine, or several that share it, have taken of a limit. Thread-safe.
class MemoryBudget {
 public:
  /// `limit` 0: no limit but what there is.
  explicit MemoryBudget(std::uint64_t limit = 0) : limit_(limit) {}

  std::uint64_t limit() const { return limit_; }
  /// Bytes that are left; those of the machine if there is no limit.
  Result<std::uint64_t> left() const;
  /// kResourceExhausted if `more` does not fit beside what is taken: names all parts.
  Status check(std::span<const MemoryPart> more) const;
  /// Counts it. If there is a limit and it does not fit: as check().
  Status take(const MemoryPart& part);
  void give_back(const MemoryPart& part);

 private:
  Status check_locked(std::span<const MemoryPart> more) const;
  std::uint64_t taken() const;
  Status too_much(std::span<const MemoryPart> more, std::uint64_t most, const std::string& whose) const;

  std::uint64_t limit_;
  mutable std::mutex mutex_;
  std::vector<MemoryPart> parts_;  // by what they are
};

}  // namespace accord::engine
