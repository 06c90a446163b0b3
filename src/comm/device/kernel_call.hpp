#pragma once
// Calls that are kernels of a higher layer.

#include <string>

#include "accord/buffer.hpp"
#include "exec/request_record.hpp"

namespace accord::comm {

/// Kernels of a higher layer, which all ranks of a group put into streams in the same order.
struct KernelCall {
  Device device;
  Stream stream;
  exec::RequestRecord record = {};                                   ///< the call, encoded by that layer
  std::string (*text)(const exec::RequestRecord& record) = nullptr;  ///< "dispatch of handle 2"
  /// Whether the calls of two ranks match.
  bool (*alike)(const exec::RequestRecord&, const exec::RequestRecord&) = nullptr;
};

}  // namespace accord::comm
