#pragma once
// Activation functions that a linear layer applies to its outputs.

#include <cstdint>

namespace accord::kernels {

enum class Activation : std::uint8_t { kNone, kGeluErf, kGeluTanh, kRelu, kSilu, kTanh, kReluSquared };

}  // namespace accord::kernels
