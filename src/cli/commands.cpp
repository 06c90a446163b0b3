#include "cli/commands.hpp"

#include <fmt/format.h>

namespace accord::cli {

int report_failure(std::string_view command, const Status& status) {
  const bool is_usage_error = status.code() == StatusCode::kInvalidArgument;
  fmt::print(stderr, "accord {}: {}\n", command, is_usage_error ? status.message() : status.to_string());
  return is_usage_error ? kUsageError : kFailure;
}

}  // namespace accord::cli
