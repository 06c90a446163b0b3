#pragma once
// The plans that users registered in this process, beside the built-in algorithms.

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

/// The plans that one name stands for, by ranks and root. Grows, and never forgets; thread-safe.
class RegisteredPlans {
 public:
  /// Null if there is none.
  const Plan* find(int size, Rank root) const;

 private:
  friend class Registry;
  std::map<std::pair<int, Rank>, std::unique_ptr<const Plan>> plans_;
};

/// Null if nothing of that name is registered. Lives as long as the process, as do all entries.
const AlgorithmEntry* registered_algorithm(Collective collective, std::string_view name);
std::vector<const AlgorithmEntry*> registered_algorithms();
/// Those that were registered with a range of sizes, in that order.
std::vector<SelectorRow> registered_rows();
/// Grows with each registration. Channels look at it in every call, so it is no more than a load.
inline std::atomic<std::uint64_t> registry_changes = 0;
inline std::uint64_t registry_version() { return registry_changes.load(std::memory_order_acquire); }

}  // namespace accord::plan
