#pragma once
// Activations by their definitions, in double precision.

#include <cmath>

#include "kernels/activation.hpp"

namespace accord::kernels {

inline double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kGeluErf: return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh: return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu: return x > 0.0 ? x : 0.0;
    case Activation::kSilu: return x / (1.0 + std::exp(-x));
    case Activation::kTanh: return std::tanh(x);
    case Activation::kReluSquared: return x < 0 ? 0 : x * x;
  }
  return NAN;
}

}  // namespace accord::kernels
