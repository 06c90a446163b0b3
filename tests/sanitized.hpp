#pragma once
// Builds with a sanitizer run ten to thirty times slower.

namespace accord::testing {

/// True in such a build: a test that goes through many sizes may take those that differ in kind only, since the release build
/// takes all of them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace accord::testing
