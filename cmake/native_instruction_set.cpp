// Prints the best instruction set of this machine that kernels can be compiled for, as Highway's constant, or 0 for
// plain code; nothing where kernels have one set only. CMake runs it for ACCORD_INSTRUCTION_SETS=NATIVE.

#include "kernels/simd_targets.hpp"  // before Highway

// clang-format off
#include <hwy/targets.h>
// clang-format on

#include <cstdio>

int main() {
#if HWY_ARCH_X86
  for (const long target : {HWY_AVX3, HWY_AVX2, HWY_SSE4}) {
    if (hwy::SupportedTargets() & target) return std::printf("HWY_%s", hwy::TargetName(target)) < 0;
  }
  return std::puts("0") < 0;
#endif
}
