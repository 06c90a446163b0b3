#pragma once
// Builds with a sanitizer run ten to thirty times slower and have their own allocators.

#if defined(__has_feature)  // clang
#if __has_feature(address_sanitizer)
#define ACCORD_ADDRESS_SANITIZER 1
#elif __has_feature(thread_sanitizer)
#define ACCORD_THREAD_SANITIZER 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ACCORD_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
#define ACCORD_THREAD_SANITIZER 1
#endif
#if defined(ACCORD_ADDRESS_SANITIZER) || defined(ACCORD_THREAD_SANITIZER)
#define ACCORD_SANITIZED 1
#endif

namespace accord::testing {

#if defined(ACCORD_ADDRESS_SANITIZER)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(ACCORD_THREAD_SANITIZER)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// True in such a build. A test that covers many sizes may then use only those that differ in kind, since the release
/// build covers all of them.
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace accord::testing
