// One table for the process, behind a lock that only registration and the first call of a kind take. Communicators
// keep what they looked up, and check the version to detect additions. Entries and plans are never removed, so
// pointers stay valid. A plan carries a digest of its text, which is part of what ranks compare in each round.

#include "plan/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <span>

#include "accord/plan.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "plan/json.hpp"
#include "plan/mscclpp.hpp"
#include "plan/selector.hpp"
#include "plan/verifier.hpp"

namespace accord {
namespace plan {
namespace {

constexpr std::size_t kLongestName = 64;

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

// A word of the selection table's grammar.
Status check_name(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  };
  if (!name.empty() && name.size() <= kLongestName && std::ranges::all_of(name, fits)) return {};
  return invalid(
      fmt::format("{} is not a name for selection tables, which consists of 1 to {} letters, digits, \"_\" and \".\"",
                  quoted_text(name), kLongestName));
}

struct Bytes {
  std::size_t from = 0;
  std::size_t to = 0;
};

Result<Bytes> read_bytes(std::string_view text) {
  const std::vector<std::string_view> ends = split_text(text, '-');
  if (ends.size() != 2) return invalid(fmt::format("bytes {} is not a range; write 0-4k or 1m-inf", quoted_text(text)));
  Bytes bytes;
  ACCORD_ASSIGN_OR_RETURN(bytes.from, parse_bytes(ends[0]));
  ACCORD_ASSIGN_OR_RETURN(bytes.to, parse_bytes(ends[1]));
  if (bytes.from >= bytes.to) return invalid(fmt::format("the range of bytes {} is empty", quoted_text(text)));
  return bytes;
}

bool is_built_in(Collective collective, std::string_view name) {
  return std::ranges::any_of(
      algorithms(), [&](const AlgorithmEntry& entry) { return entry.collective == collective && entry.name == name; });
}

}  // namespace

class Registry {
 public:
  static Registry& instance() {
    static Registry* const registry = new Registry;  // never destroyed: communicators may outlive main()
    return *registry;
  }

  Status add(Plan plan, std::string_view range) {
    Bytes bytes;
    if (!range.empty()) {
      ACCORD_ASSIGN_OR_RETURN(bytes, read_bytes(range));
    }
    const std::lock_guard lock(mutex_);
    Named& named = of(plan.collective, plan.name);
    auto& kept = named.plans.plans_[{plan.size, plan.root}];
    if (kept != nullptr && *kept != plan)
      return invalid(fmt::format("another plan for {} ranks and root {} is registered under the name \"{}\"", plan.size,
                                 plan.root, plan.name));
    const Collective collective = plan.collective;
    const int size = plan.size;
    bool is_new = kept == nullptr;
    if (is_new) kept = std::make_unique<const Plan>(std::move(plan));
    if (!range.empty()) {
      const SelectorRow row{.collective = collective,
                            .min_ranks = size,
                            .max_ranks = size,
                            .from_bytes = bytes.from,
                            .to_bytes = bytes.to,
                            .algorithm = &named.entry};
      if (std::ranges::find(rows_, row) == rows_.end()) {
        rows_.push_back(row);
        is_new = true;
      }
    }
    if (is_new) registry_changes.fetch_add(1, std::memory_order_release);
    return {};
  }

  const AlgorithmEntry* find(Collective collective, std::string_view name) const {
    const std::lock_guard lock(mutex_);
    for (const Named& named : named_)
      if (named.entry.collective == collective && named.name == name) return &named.entry;
    return nullptr;
  }
  std::vector<const AlgorithmEntry*> entries() const {
    const std::lock_guard lock(mutex_);
    std::vector<const AlgorithmEntry*> all;
    for (const Named& named : named_) all.push_back(&named.entry);
    return all;
  }
  const Plan* find(const RegisteredPlans& plans, int size, Rank root) const {
    const std::lock_guard lock(mutex_);
    const auto found = plans.plans_.find({size, root});
    return found == plans.plans_.end() ? nullptr : found->second.get();
  }
  std::vector<SelectorRow> rows() const {
    const std::lock_guard lock(mutex_);
    return rows_;
  }

 private:
  struct Named {
    std::string name;
    RegisteredPlans plans;
    AlgorithmEntry entry;
  };

  Named& of(Collective collective, const std::string& name) {
    for (Named& named : named_)
      if (named.entry.collective == collective && named.name == name) return named;
    Named& named = named_.emplace_back();
    named.name = name;
    named.entry = {.collective = collective, .name = named.name, .registered = &named.plans};
    return named;
  }

  mutable std::mutex mutex_;
  std::deque<Named> named_;
  std::vector<SelectorRow> rows_;
};

const Plan* RegisteredPlans::find(int size, Rank root) const { return Registry::instance().find(*this, size, root); }

const AlgorithmEntry* registered_algorithm(Collective collective, std::string_view name) {
  return Registry::instance().find(collective, name);
}
std::vector<const AlgorithmEntry*> registered_algorithms() { return Registry::instance().entries(); }
std::vector<SelectorRow> registered_rows() { return Registry::instance().rows(); }

}  // namespace plan

Status register_plan(std::string_view json, const PlanOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(plan::Plan made, plan::plan_from_json(json));
  if (!options.name.empty()) made.name = options.name;
  ACCORD_RETURN_IF_ERROR(plan::check_name(made.name));
  if (plan::is_built_in(made.collective, made.name))
    return plan::invalid(fmt::format("{} has a built-in algorithm \"{}\"; a plan needs a name of its own",
                                     to_string(made.collective), made.name));
  ACCORD_RETURN_IF_ERROR(plan::verify_for_calls(made));
  const std::string text = plan::to_json(made);
  made.digest = xxh3(std::as_bytes(std::span(text)));
  return plan::Registry::instance().add(std::move(made), options.bytes);
}

Status verify_plan(std::string_view json) {
  ACCORD_ASSIGN_OR_RETURN(const plan::Plan made, plan::plan_from_json(json));
  return plan::verify_for_calls(made);
}

Result<std::string> import_mscclpp_plan(std::string_view json, SwitchOps ops) {
  ACCORD_ASSIGN_OR_RETURN(const plan::Plan made, plan::import_mscclpp(json, ops));
  return plan::to_json(made);
}

}  // namespace accord
