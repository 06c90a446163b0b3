// A binary search among the few windows of a group, once for each buffer.
#include "comm/window/window_table.hpp"

#include "comm/call.hpp"

namespace accord::comm {

// Stores field by field into `placement`, which is read at once: a copy would have to wait for the stores.
void place_buffers(const WindowTable& table, const Operation& operation, const exec::Domain& domain,
                   exec::Placement& placement) {
  placement.windows = nullptr;
  placement.in_place = false;
  const exec::RequestRecord& record = operation.record;
  if (table.ranges.empty() || record.count == 0 || operation.extent != nullptr ||
      record.collective == Collective::kSendRecv)
    return;
  const auto [in, out] = buffer_bytes_of(record, domain.me(), domain.members());
  if (in + out == 0) return;  // a barrier
  placement.input = in > 0 ? place_of(table.ranges, operation.input, in) : exec::kNoPlace;
  placement.output = out > 0 ? place_of(table.ranges, operation.output, out) : exec::kNoPlace;
  if ((in > 0 && placement.input == exec::kNoPlace) || (out > 0 && placement.output == exec::kNoPlace)) return;
  placement.in_place = in > 0 && out > 0 && !are_disjoint(operation.input, in, operation.output, out);
  placement.windows = &table.windows;
}

}  // namespace accord::comm
