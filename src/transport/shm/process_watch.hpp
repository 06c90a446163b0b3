#pragma once
// Seeing a process end, whatever its children still hold open.

#include <sys/types.h>

#include <memory>

#include "base/fd.hpp"

namespace accord::transport {

enum class ProcessLife : std::uint8_t {
  kUnknown,  ///< it cannot be watched from here
  kRuns,
  kEnded,
};

/// A process under watch. Copies share one descriptor, and so do all watches of one process.
struct ProcessWatch {
  ProcessLife life = ProcessLife::kUnknown;    ///< when the watch began
  std::shared_ptr<const UniqueFd> ended = {};  ///< becomes readable when it ends; null unless kRuns
};

/// Watches `process`. kUnknown for this process itself, for 0, and where the kernel or a sandbox has no pidfd.
ProcessWatch watch_process(pid_t process);

}  // namespace accord::transport
