#pragma once
// Limits of numbers among a command's options, with messages that name only the limit. Messages of CLI11's own checks
// name the largest double.

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

namespace accord::cli {

// Text that is not a number is left to the conversion, which reports it.
inline CLI::Validator min_number(double min, bool includes_min, const char* message, const char* type_name) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        char* end = nullptr;
        const double number = std::strtod(text.c_str(), &end);
        const bool is_number = end != text.c_str() && *end == '\0';
        return is_number && (number < min || (number == min && !includes_min)) ? text + message : "";
      },
      type_name);
}

inline CLI::Validator positive_number() { return min_number(0, false, " is not greater than 0", "POSITIVE"); }
inline CLI::Validator non_negative_number() { return min_number(0, true, " is less than 0", "NONNEGATIVE"); }

}  // namespace accord::cli
