#pragma once
// What every store demands of keys and values, and says when it refuses one.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "accord/store.hpp"

namespace accord::store {

inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;

/// kInvalidArgument if `key` is empty or too long.
Status check_key(std::string_view key);
/// kInvalidArgument if `value` is too large.
Status check_value(std::string_view key, std::string_view value);

/// The number that `value`, found at `key`, becomes when `delta` is added; a null value is an absent one. kInvalidArgument
/// if it is no decimal number or the sum leaves 64 bits.
Result<std::int64_t> add_to(std::string_view key, const std::string* value, std::int64_t delta);

/// kTimeout: nobody set `key` in the store at `where` (its describe()).
Status not_set(std::string_view where, std::string_view key, Duration timeout);

}  // namespace accord::store
