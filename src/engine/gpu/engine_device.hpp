#pragma once
// The GPU of an engine.

#include "device/blas.hpp"
#include "device/runtime.hpp"

namespace accord::engine {

/// A device, with its runtime and its library of matrix products.
struct EngineDevice {
  device::Runtime* runtime = nullptr;
  device::Blas* blas = nullptr;
  Device device;
};
/// Fails with kUnsupported or kNotFound if the device, or its library of products, is not available, and says why;
/// with kInvalidArgument if there is no device of that index.
Result<EngineDevice> find_engine_device(Device device);

}  // namespace accord::engine
