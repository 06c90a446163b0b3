#pragma once
// Limits on keys and values that every store enforces, and the errors for them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "accord/store.hpp"

namespace accord::store {

inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;

/// Fails with kInvalidArgument if `key` is empty or too long.
Status check_key(std::string_view key);
/// Fails with kInvalidArgument if `value` is too large.
Status check_value(std::string_view key, std::string_view value);

/// Adds `delta` to the number in `value`, which was found at `key`; a null value is an absent one. Fails with
/// kInvalidArgument if the value is not a decimal number or the sum exceeds 64 bits.
Result<std::int64_t> add_to(std::string_view key, const std::string* value, std::int64_t delta);

/// Returns kTimeout: nobody set `key` in the store at `where` (its describe()).
Status not_set(std::string_view where, std::string_view key, Duration timeout);

}  // namespace accord::store
