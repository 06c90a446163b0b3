// Rules shared by all stores, so that a program behaves the same with each of them.
#include "store/entry.hpp"

#include <fmt/format.h>

#include "base/text.hpp"

namespace accord::store {

Status check_key(std::string_view key) {
  if (key.empty()) return Status(StatusCode::kInvalidArgument, "a store's key must not be empty");
  if (key.size() <= kMaxKeyBytes) return Status();
  return Status(StatusCode::kInvalidArgument, fmt::format("store key {} has {} bytes; at most {} are allowed",
                                                          quoted_text(key), key.size(), kMaxKeyBytes));
}

Status check_value(std::string_view key, std::string_view value) {
  if (value.size() <= kMaxValueBytes) return Status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("the value for store key {} has {} bytes; at most {} are allowed", quoted_text(key),
                            value.size(), kMaxValueBytes));
}

Result<std::int64_t> add_to(std::string_view key, const std::string* value, std::int64_t delta) {
  std::int64_t sum = 0;
  if (value != nullptr) {
    const Result<std::int64_t> number = parse_integer(*value, "the value");
    if (!number.ok()) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("add to store key {}: its value {} is not a decimal number", quoted_text(key),
                                quoted_text(*value)));
    }
    sum = *number;
  }
  if (__builtin_add_overflow(sum, delta, &sum)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("add to store key {}: the sum of {} and {} does not fit in 64 bits", quoted_text(key),
                              *value, delta));
  }
  return sum;
}

Status not_set(std::string_view where, std::string_view key, Duration timeout) {
  return Status(StatusCode::kTimeout, fmt::format("store {}: nobody set key {} within {}", where, quoted_text(key),
                                                  duration_text(std::max(timeout, Duration::zero()))));
}

}  // namespace accord::store
