#pragma once
// The open descriptors of this process.

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>

namespace accord::testing {

/// Returns the number of open descriptors, except for files of /proc, which threads read from time to time.
inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::count_if(begin(entries), end(entries), [](const auto& entry) {
    std::error_code closed;
    const std::string file = std::filesystem::read_symlink(entry.path(), closed).string();
    return !closed && !file.starts_with("/proc/");
  }));
}

}  // namespace accord::testing
