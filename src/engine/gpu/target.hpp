#pragma once
// Engines on a GPU.

#include <memory>

#include "engine/program/target.hpp"

namespace accord::engine::gpu {

/// Errors as for find_engine_device(); kUnsupported for options that engines on GPUs do not have.
Result<std::shared_ptr<const Target>> create_target(const LoadOptions& options);

}  // namespace accord::engine::gpu
