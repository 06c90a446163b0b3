#pragma once
// Selects the instruction sets that kernels are compiled for. Every file that uses Highway includes this before
// Highway's headers.
// On x86 the targets are AVX3 (AVX-512), AVX2, SSE4 and plain scalar code. The run-time vector lengths of SVE and RVV
// cannot be stored in arrays, so Arm uses NEON. Sanitizer builds, in which each target takes minutes to compile, have
// only AVX2 and scalar code and convert narrow floats through function calls: neither races nor out-of-bounds
// accesses depend on the vector width. With ACCORD_INSTRUCTION_SETS=NATIVE, CMake selects a single x86 target besides
// scalar code.

#if defined(__has_feature)
#define ACCORD_CLANG_HAS(feature) __has_feature(feature)
#else
#define ACCORD_CLANG_HAS(feature) 0
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || ACCORD_CLANG_HAS(thread_sanitizer) || \
    ACCORD_CLANG_HAS(address_sanitizer)
#define ACCORD_SANITIZED 1
#define ACCORD_EXCLUDED_TARGETS (HWY_SSE4 | HWY_AVX3)
#define ACCORD_INLINE_CONVERSION HWY_NOINLINE
#else
#define ACCORD_SANITIZED 0
#define ACCORD_INLINE_CONVERSION HWY_INLINE
#ifdef ACCORD_ONLY_TARGET
#define ACCORD_EXCLUDED_TARGETS ((HWY_SSE4 | HWY_AVX2 | HWY_AVX3) & ~ACCORD_ONLY_TARGET)
#else
#define ACCORD_EXCLUDED_TARGETS 0
#endif
#endif

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | ACCORD_EXCLUDED_TARGETS)
