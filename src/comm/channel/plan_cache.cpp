// A call's plan is looked up by its request, and kept: building and lowering a plan costs microseconds, finding it
// again a few nanoseconds. A kept plan serves only calls with the same request, the same parts and buffers that are
// placed alike.
#include "comm/channel/plan_cache.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "comm/explain.hpp"
#include "comm/group.hpp"
#include "exec/remote_steps.hpp"
#include "plan/registry.hpp"

namespace accord::comm {
namespace {

/// Everything in an extent that lowering depends on, except the longest part, which is in the record.
std::vector<std::size_t> words_of(const plan::Extent& extent) {
  std::vector<std::size_t> words = {extent.input_count, extent.output_count};
  words.insert(words.end(), extent.input_parts.begin(), extent.input_parts.end());
  words.insert(words.end(), extent.output_parts.begin(), extent.output_parts.end());
  return words;
}

bool is_of(std::span<const std::size_t> words, const plan::Extent& extent) {
  const std::size_t parts = extent.input_parts.size() + extent.output_parts.size();
  if (words.size() != 2 + parts || words[0] != extent.input_count || words[1] != extent.output_count) return false;
  const auto rest = words.subspan(2);
  return std::equal(extent.input_parts.begin(), extent.input_parts.end(), rest.begin()) &&
         std::equal(extent.output_parts.begin(), extent.output_parts.end(), rest.begin() + extent.input_parts.size());
}

std::uint64_t hash_of(const plan::Extent& extent) {
  std::uint64_t hash = extent.input_count ^ (extent.output_count << 32);
  for (const std::span<const std::size_t> parts : {extent.input_parts, extent.output_parts})
    for (const std::size_t part : parts) hash = (hash ^ part) * 0x9e3779b97f4a7c15;
  return hash;
}

}  // namespace

std::unique_ptr<PreparedPlan>& PlanCache::slot_of(const PlanKey& key) {
  // Reads field by field, as the caller has just stored them: a wider load would have to wait until those stores, and
  // whatever the last call stored for its peers, have left the core.
  const exec::RequestRecord& record = key.record;
  std::uint64_t hash = static_cast<std::uint64_t>(record.collective);
  for (const std::uint64_t field : {static_cast<std::uint64_t>(record.dtype), static_cast<std::uint64_t>(record.op),
                                    static_cast<std::uint64_t>(record.phase), static_cast<std::uint64_t>(record.root)})
    hash = hash * 31 + field;
  hash = (hash ^ (record.count * 0x9e3779b97f4a7c15)) * 0xff51afd7ed558ccd;
  const std::uint64_t place = (key.registered ? 2 : 0) + (key.in_place ? 1 : 0);
  return slots_[((hash >> 32) ^ (key.extent == nullptr ? place : hash_of(*key.extent) >> 32)) % kSlots];
}

bool PlanCache::serves(const PreparedPlan* prepared, const PlanKey& key) const {
  return prepared != nullptr && prepared->request == key.record && prepared->registered == key.registered &&
         prepared->in_place == key.in_place && (key.extent == nullptr || is_of(prepared->extent, *key.extent)) &&
         version_ == plan::registry_version();
}

const PreparedPlan* PlanCache::find(const Known& known) const {
  return known.drops == drops_ && version_ == plan::registry_version() ? known.plan : nullptr;
}

Result<const PreparedPlan*> PlanCache::prepare(const PlanKey& key) {
  ++drops_;
  if (const std::uint64_t version = plan::registry_version(); version_ != version) {
    slots_ = {};
    version_ = version;
  }
  ACCORD_ASSIGN_OR_RETURN(PreparedPlan lowered, lower(key));
  std::unique_ptr<PreparedPlan>& slot = slot_of(key);
  slot = std::make_unique<PreparedPlan>(std::move(lowered));
  return slot.get();
}

Result<PreparedPlan> PlanCache::lower(const PlanKey& key) {
  exec::RequestRecord record = key.record;
  if (key.registered) record.phase = exec::Phase::kRegistered;
  const bool counts = record.phase == exec::Phase::kCountsFirst;
  const Collective collective = counts ? Collective::kAllGather : record.collective;
  const Rank root = counts ? 0 : record.root;
  const std::size_t bytes = counts ? key.counts * sizeof(std::uint64_t) : record.count * size_of(record.dtype);
  ACCORD_ASSIGN_OR_RETURN(const plan::Choice choice,
                          group_.selector().choose({.collective = collective,
                                                    .bytes = bytes,
                                                    .root = root,
                                                    .op = record.op,
                                                    .registered = key.registered,
                                                    .readable = key.extent == nullptr && topology_.readable(),
                                                    .in_place = key.in_place},
                                                   topology_));
  const std::size_t plans_before = plans_.size();
  ACCORD_ASSIGN_OR_RETURN(const plan::Plan* const plan, plan_for(*choice.algorithm, root));
  exec::Payload payload{counts ? DType::kUInt64 : record.dtype, {}};
  const std::size_t element = size_of(payload.dtype);
  payload.bounds = key.extent != nullptr ? plan::bounds_of(*plan, *key.extent, element)
                                         : plan::bounds_of(*plan, counts ? key.counts : record.count, element);
  const std::size_t no_limit = plan->buffers == plan::Buffers::kAnywhere ? domain_.layout().slot_bytes : SIZE_MAX;
  const std::size_t slot_bytes = choice.slot_bytes == 0 ? no_limit : choice.slot_bytes;
  ACCORD_ASSIGN_OR_RETURN(exec::LoweredPlan lowered,
                          exec::lower(*plan, domain_.me(), domain_.layout(), slot_bytes, record, std::move(payload)));
  ACCORD_RETURN_IF_ERROR(exec::route_remote_steps(lowered, domain_, plan->name));
  if (plans_.size() > plans_before && domain_.me() == 0 && explains())
    explain(describe_choice(group_.options().name, plan->name, lowered));
  return PreparedPlan{.plan = std::move(lowered),
                      .request = key.record,
                      .registered = key.registered,
                      .extent = key.extent == nullptr ? std::vector<std::size_t>() : words_of(*key.extent),
                      .in_place = key.in_place,
                      .apart = plan->buffers == plan::Buffers::kInWindowsApart,
                      .algorithm = group_.recorder().algorithm(plan->name)};
}

Result<const plan::Plan*> PlanCache::plan_for(const plan::AlgorithmEntry& algorithm, Rank root) {
  for (const auto& plan : plans_)
    if (plan->collective == algorithm.collective && plan->name == algorithm.name && plan->root == root)
      return plan.get();
  const plan::Request request{.collective = algorithm.collective, .root = root, .only_rank = domain_.me()};
  ACCORD_ASSIGN_OR_RETURN(plan::Plan plan, plan::make_plan(algorithm, topology_, request));
  plans_.push_back(std::make_unique<plan::Plan>(std::move(plan)));
  return plans_.back().get();
}

}  // namespace accord::comm
