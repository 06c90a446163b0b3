// The logger is created once and never destroyed, so that threads that outlive main() may still write to it. It is
// not in spdlog's registry, so a program that uses spdlog itself keeps its own names and levels.
#include "base/log.hpp"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "base/config.hpp"

namespace accord {
namespace {

spdlog::logger* make_logger() {
  auto* logger = new spdlog::logger("accord", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("[%H:%M:%S.%e %P accord %l] %v");
  const Result<Config>& settings = config();
  logger->set_level(spdlog::level::from_str(settings.ok() ? settings->log_level : Config().log_level));
  if (settings.ok() && settings->debug == "info" && !logger->should_log(spdlog::level::info))
    logger->set_level(spdlog::level::info);
  logger->flush_on(spdlog::level::trace);
  return logger;
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kCritical: break;
  }
  return spdlog::level::critical;
}

}  // namespace

void Log::write(LogLevel level, fmt::string_view format, fmt::format_args args) {
  static spdlog::logger* const logger = make_logger();
  if (logger->should_log(level_of(level))) logger->log(level_of(level), fmt::vformat(format, args));
}

}  // namespace accord
