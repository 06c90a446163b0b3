#pragma once
// Builds with a sanitizer run ten to thirty times slower, and have allocators of their own.

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ACCORD_SANITIZED 1
#elif defined(__has_feature)  // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ACCORD_SANITIZED 1
#endif
#endif

namespace accord::testing {

/// True in such a build: a test that goes through many sizes may take those that differ in kind only, since the release build
/// takes all of them.
#if defined(ACCORD_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace accord::testing
