#pragma once
// The devices that engines can be on.

#include <memory>

#include "engine/program/target.hpp"

namespace accord::engine {

/// The device of LoadOptions::device. Errors as for gpu::create_target().
Result<std::shared_ptr<const Target>> create_target(const LoadOptions& options);

}  // namespace accord::engine
