#pragma once
// Options that may differ from call to call.

#include <optional>

#include "accord/buffer.hpp"
#include "accord/store.hpp"

namespace accord {

/// Absent options have the communicator's values.
struct CallOptions {
  std::optional<Duration> timeout = {};  ///< limit for this call
  Stream stream = {};                    ///< orders access to device buffers; ignored for CPU memory
};

}  // namespace accord
