#include "plan/collective.hpp"

#include <array>
#include <vector>

#include "base/text.hpp"

namespace accord {
namespace plan {
namespace {

constexpr BufferRole kNone = {};
constexpr BufferRole kOfAll = {Holders::kAll, false};
constexpr BufferRole kPartsOfAll = {Holders::kAll, true};
constexpr BufferRole kOfRoot = {Holders::kRoot, false};
constexpr BufferRole kPartsOfRoot = {Holders::kRoot, true};
constexpr BufferRole kOfOthers = {Holders::kAllButRoot, false};

// In the order of the enumeration.
constexpr std::array<CollectiveTraits, kCollectiveCount> kTraits = {{
    {.name = "barrier", .input = kNone, .output = kNone},
    {.name = "broadcast", .input = kOfAll, .output = kOfAll, .rooted = true, .one_buffer = true},
    {.name = "all_gather", .input = kOfAll, .output = kPartsOfAll},
    {.name = "reduce_scatter", .input = kPartsOfAll, .output = kOfAll, .reduces = true},
    {.name = "all_reduce", .input = kOfAll, .output = kOfAll, .reduces = true},
    {.name = "reduce", .input = kOfAll, .output = kOfRoot, .reduces = true, .rooted = true},
    {.name = "gather", .input = kOfAll, .output = kPartsOfRoot, .rooted = true},
    {.name = "scatter", .input = kPartsOfRoot, .output = kOfAll, .rooted = true},
    {.name = "all_to_all", .input = kPartsOfAll, .output = kPartsOfAll},
    {.name = "send_recv", .input = kOfRoot, .output = kOfOthers},
}};

}  // namespace

const CollectiveTraits& traits_of(Collective collective) { return kTraits.at(static_cast<std::size_t>(collective)); }

}  // namespace plan

std::string_view to_string(Collective collective) {
  const auto number = static_cast<std::size_t>(collective);
  return number < plan::kTraits.size() ? plan::kTraits[number].name : "?";
}

Result<Collective> collective_from_string(std::string_view name) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < plan::kTraits.size(); ++i) {
    if (plan::kTraits[i].name == name) return static_cast<Collective>(i);
    names.push_back(plan::kTraits[i].name);
  }
  return unknown_name("collective", name, names);
}

}  // namespace accord
