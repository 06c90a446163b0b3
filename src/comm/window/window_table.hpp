#pragma once
// Finds the windows that contain the buffers of calls.

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/pending_work.hpp"
#include "comm/window_ranges.hpp"
#include "exec/domain.hpp"
#include "exec/placement.hpp"
#include "transport/transport.hpp"

namespace accord::comm {

using Links = std::vector<std::unique_ptr<transport::Link>>;

/// The windows of a group at one moment. Keeps peers' memory mapped; never changes.
struct WindowTable {
  std::uint64_t version = 0;
  std::vector<LocalRange> ranges;  ///< by address
  exec::MappedWindows windows;
  std::vector<std::shared_ptr<const Links>> links;
};

/// Sets `placement` to the places of this rank's buffers in a call on the whole group, or to no windows unless all of
/// them are in windows. Calls with parts of unequal counts have none: peers do not know where parts begin.
void place_buffers(const WindowTable& table, const Operation& operation, const exec::Domain& domain,
                   exec::Placement& placement);

}  // namespace accord::comm
