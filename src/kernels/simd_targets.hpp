#pragma once
// The instruction sets that kernels are compiled for, before Highway's headers in every file that uses them: on x86 AVX3
// (AVX-512), AVX2, SSE4 and plain scalar code; the vectors of run-time length of SVE and RVV cannot lie in arrays, ARM runs
// on NEON. Builds with a sanitizer, whose every set takes minutes to compile, have AVX2 and plain code only, and convert narrow
// floats by calls: neither races nor the ends of arrays depend on the width. With ACCORD_INSTRUCTION_SETS=NATIVE, CMake
// names the only one that there is on x86 beside plain code.

#if defined(__has_feature)
#define ACCORD_CLANG_HAS(feature) __has_feature(feature)
#else
#define ACCORD_CLANG_HAS(feature) 0
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || ACCORD_CLANG_HAS(thread_sanitizer) || \
    ACCORD_CLANG_HAS(address_sanitizer)
#define ACCORD_SANITIZED 1
#define ACCORD_LEFT_OUT_TARGETS (HWY_SSE4 | HWY_AVX3)
#define ACCORD_INLINE_CONVERSION HWY_NOINLINE
#else
#define ACCORD_SANITIZED 0
#define ACCORD_INLINE_CONVERSION HWY_INLINE
#ifdef ACCORD_ONLY_TARGET
#define ACCORD_LEFT_OUT_TARGETS ((HWY_SSE4 | HWY_AVX2 | HWY_AVX3) & ~ACCORD_ONLY_TARGET)
#else
#define ACCORD_LEFT_OUT_TARGETS 0
#endif
#endif

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | ACCORD_LEFT_OUT_TARGETS)
