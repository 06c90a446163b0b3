// A binary search among the few windows of a group, once for each buffer.
#include "comm/window/window_table.hpp"

#include <algorithm>

#include "comm/call.hpp"
#include "plan/collective.hpp"

namespace accord::comm {
namespace {

exec::PlaceWord place_of(const WindowTable& table, const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto above = [](std::uintptr_t address, const LocalRange& range) { return address < range.begin; };
  auto range = std::upper_bound(table.ranges.begin(), table.ranges.end(), begin, above);
  if (range == table.ranges.begin()) return exec::kNoPlace;
  --range;
  if (begin > range->end || bytes > range->end - begin) return exec::kNoPlace;
  return exec::place_word(range->window, begin - range->begin);
}

}  // namespace

// Stores field by field into `placement`, which is read at once: a copy would have to wait for the stores.
void place_buffers(const WindowTable& table, const Operation& operation, const exec::Domain& domain,
                   exec::Placement& placement) {
  placement.windows = nullptr;
  placement.in_place = false;
  const exec::RequestRecord& record = operation.record;
  if (table.ranges.empty() || record.count == 0 || operation.extent != nullptr ||
      record.collective == Collective::kSendRecv)
    return;
  const plan::CollectiveTraits& traits = plan::traits_of(record.collective);
  const std::size_t part = record.count * size_of(record.dtype);
  const auto bytes_of = [&](const plan::BufferRole& role) -> std::size_t {
    if (!holds(role, domain.me(), record.root)) return 0;
    return role.divided ? part * static_cast<std::size_t>(domain.members()) : part;
  };
  const std::size_t in = bytes_of(traits.input), out = bytes_of(traits.output);
  if (in + out == 0) return;  // a barrier
  placement.input = in > 0 ? place_of(table, operation.input, in) : exec::kNoPlace;
  placement.output = out > 0 ? place_of(table, operation.output, out) : exec::kNoPlace;
  if ((in > 0 && placement.input == exec::kNoPlace) || (out > 0 && placement.output == exec::kNoPlace)) return;
  placement.in_place = in > 0 && out > 0 && !are_disjoint(operation.input, in, operation.output, out);
  placement.windows = &table.windows;
}

}  // namespace accord::comm
