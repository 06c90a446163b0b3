#pragma once
// The log, written to standard error, at the level of ACCORD_LOG (trace, debug, info, warn, error, off), or info with
// ACCORD_DEBUG=info.

#include <fmt/core.h>

#include <cstdint>

namespace accord {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kCritical };

/// `log().info("connected {} ranks", n)` writes one line if that level is enabled. Only log.cpp includes the
/// implementation (spdlog), whose templates would otherwise be compiled for each file that logs.
class Log {
 public:
  template <typename... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kDebug, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kInfo, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kWarn, format, fmt::make_format_args(args...));
  }
  template <typename... Args>
  void critical(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::kCritical, format, fmt::make_format_args(args...));
  }

 private:
  static void write(LogLevel level, fmt::string_view format, fmt::format_args args);
};

/// The log of this process.
inline Log log() { return {}; }

}  // namespace accord
