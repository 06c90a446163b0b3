#pragma once
// Engines on the CPU.

#include "engine/program/target.hpp"

namespace accord::engine::host {

const Target& target();

}  // namespace accord::engine::host
