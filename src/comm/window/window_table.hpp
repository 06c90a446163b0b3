#pragma once
// Finds the windows that contain the buffers of calls.

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/pending_work.hpp"
#include "exec/domain.hpp"
#include "exec/placement.hpp"
#include "transport/transport.hpp"

namespace accord::comm {

using Links = std::vector<std::unique_ptr<transport::Link>>;

/// This rank's memory in a window that is mapped on all ranks.
struct LocalRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  int window = 0;  ///< its number
};

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
