#pragma once
// What may differ from call to call.

#include <optional>

#include "accord/buffer.hpp"
#include "accord/store.hpp"

namespace accord {

/// Absent is the communicator's.
struct CallOptions {
  std::optional<Duration> timeout = {};  ///< how long this call may take
  Stream stream = {};                    ///< where device buffers are ordered; ignored for CPU memory
};

}  // namespace accord
