#include "flight/dump.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "base/blocked_signals.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"

namespace accord::flight {
namespace {

/// A communicator's name as part of a file name: "world/1" becomes "world_1".
std::string file_name_of(std::string_view name) {
  constexpr std::size_t kLongest = 64;
  std::string text(name.substr(0, kLongest));
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '-'; },
      '_');
  return text;
}

void write_and_log(const FlightLog& log, const std::string& directory) {
  const Result<std::string> path = write_dump(log, directory);
  if (path.ok()) {
    accord::log().info("group \"{}\" failed; the flight record of rank {} is in {}", log.name, log.rank, *path);
  } else {
    accord::log().warn("group \"{}\" failed, and the flight record of rank {} could not be written: {}", log.name,
                       log.rank, path.status().message());
  }
}

}  // namespace

Result<std::string> write_dump(const FlightLog& log, const std::string& directory) {
  if (directory.empty()) return Status(StatusCode::kInvalidArgument, "dump: the directory has no name");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return errno_status(error.value(), directory);
  const std::string path = (std::filesystem::path(directory) /
                            fmt::format("accord-{}-{}-rank{}.json", file_name_of(log.name), log.id, log.rank))
                               .string();
  ACCORD_RETURN_IF_ERROR(write_file(path, to_json(log)));
  return path;
}

void FailureDump::start(FlightLog log, std::string directory) {
  {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->under_way, true)) return;
  }
  const auto write = [state = state_, log = std::move(log), directory = std::move(directory)] {
    write_and_log(log, directory);
    const std::lock_guard lock(state->mutex);
    state->under_way = false;
    state->changed.notify_all();
  };
  try {
    const BlockedSignals signals_stay_with_the_program;
    std::thread(write).detach();
  } catch (const std::system_error&) {
    write();  // no thread could be created
  }
}

void FailureDump::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, kWriteTimeout, [this] { return !state_->under_way; });
}

}  // namespace accord::flight
