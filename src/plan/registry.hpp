#pragma once
// The plans registered by users in this process, in addition to the built-in algorithms.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/algorithms.hpp"
#include "plan/plan.hpp"

namespace accord::plan {

struct SelectorRow;

/// The plans registered under one name, by ranks and root. Plans are added and never removed. Thread-safe.
class RegisteredPlans {
 public:
  /// Null if there is none.
  const Plan* find(int size, Rank root) const;

 private:
  friend class Registry;
  std::map<std::pair<int, Rank>, std::unique_ptr<const Plan>> plans_;
};

/// Null if nothing of that name is registered. Entries live as long as the process.
const AlgorithmEntry* registered_algorithm(Collective collective, std::string_view name);
std::vector<const AlgorithmEntry*> registered_algorithms();
/// The rows of plans that were registered with a range of sizes, in order of registration.
std::vector<SelectorRow> registered_rows();
/// Incremented by each registration. Channels read it in every call, so reading costs only a load.
inline std::atomic<std::uint64_t> registry_changes = 0;
inline std::uint64_t registry_version() { return registry_changes.load(std::memory_order_acquire); }

}  // namespace accord::plan
