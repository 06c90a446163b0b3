#pragma once
// What is applied to each output of a linear layer.

#include <cstdint>

namespace accord::kernels {

enum class Activation : std::uint8_t { kNone, kGeluErf, kGeluTanh, kRelu, kSilu, kTanh };

}  // namespace accord::kernels
