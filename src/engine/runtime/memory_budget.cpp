// A process may use what the machine has available (as counted by the kernel) and what each of its control groups has
// left: all those of version 2 up to the root, and the one of version 1. Without a limit, only the bytes about to be
// taken are compared with that, since memory taken earlier is already counted there.
#include "engine/runtime/memory_budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "base/fd.hpp"
#include "base/text.hpp"

namespace accord::engine {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;  // control groups without a limit report this or more

std::optional<std::uint64_t> number_in(std::string_view text) {
  const std::size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  const auto result = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::optional<std::uint64_t> number_of(const std::string& path) {
  const Result<std::string> text = read_file(path);
  return text.ok() ? number_in(*text) : std::nullopt;
}

// Returns the number after `name` in lines like "MemAvailable:  123 kB" or "inactive_file 4096".
std::optional<std::uint64_t> field_of(const std::string& path, std::string_view name) {
  const Result<std::string> text = read_file(path);
  if (!text.ok()) return std::nullopt;
  for (const std::string_view line : split_text(*text, '\n')) {
    if (line.starts_with(name)) return number_in(line.substr(name.size()));
  }
  return std::nullopt;
}

/// The files of one version of control groups.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // a field of memory.stat
};

std::optional<std::uint64_t> left_in(const std::string& folder, const GroupFiles& files) {
  const auto limit = number_of(folder + files.limit);
  const auto usage = number_of(folder + files.usage);
  if (!limit || !usage || *limit >= kNoLimit) return std::nullopt;
  const std::uint64_t files_held = field_of(folder + "/memory.stat", files.reclaimable).value_or(0);
  const std::uint64_t held = *usage - std::min(*usage, files_held);
  return *limit - std::min(*limit, held);
}

// Returns what is left in the groups of one line of /proc/self/cgroup: "0::/user.slice/job" or "4:memory:/job".
std::optional<std::uint64_t> left_in_groups(const std::string& root, std::string_view line) {
  const std::size_t first = line.find(':');
  const std::size_t second = line.find(':', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
  const std::string_view kind = line.substr(first + 1, second - first - 1);
  const bool is_second_version = kind.empty();
  if (!is_second_version && kind != "memory") return std::nullopt;
  const GroupFiles files = is_second_version
                               ? GroupFiles{"/memory.max", "/memory.current", "inactive_file"}
                               : GroupFiles{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"};
  const std::string base = root + "/sys/fs/cgroup" + (is_second_version ? "" : "/memory");
  std::string path(line.substr(second + 1));
  std::optional<std::uint64_t> smallest;
  while (true) {
    if (const auto left = left_in(base + path, files)) smallest = std::min(smallest.value_or(*left), *left);
    if (path.empty()) return smallest;
    path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

Result<AvailableMemory> available_memory(const std::string& root) {
  const auto kilobytes = field_of(root + "/proc/meminfo", "MemAvailable:");
  AvailableMemory smallest{kilobytes ? *kilobytes * 1024 : std::numeric_limits<std::uint64_t>::max(), "the machine"};
  const Result<std::string> groups = read_file(root + "/proc/self/cgroup");
  if (!groups.ok()) return smallest;
  for (const std::string_view line : split_text(*groups, '\n')) {
    const auto left = left_in_groups(root, line);
    if (left && *left < smallest.bytes) smallest = {*left, "the control group"};
  }
  return smallest;
}

std::uint64_t MemoryBudget::taken() const {
  std::uint64_t bytes = 0;
  for (const MemoryPart& part : parts_) bytes += part.bytes;
  return bytes;
}

Result<std::uint64_t> MemoryBudget::left() const {
  if (limit_ == 0) {
    ACCORD_ASSIGN_OR_RETURN(const AvailableMemory available, available_memory());
    return available.bytes;
  }
  const std::lock_guard lock(mutex_);
  return limit_ - std::min(limit_, taken());
}

Status MemoryBudget::over_budget(std::span<const MemoryPart> more, std::uint64_t max_bytes,
                                 const std::string& limited_by) const {
  std::string text;
  std::uint64_t bytes = 0;
  const auto add = [&](const MemoryPart& part) {
    if (part.bytes == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part.what, bytes_text(part.bytes));
    bytes += part.bytes;
  };
  if (limit_ != 0) std::for_each(parts_.begin(), parts_.end(), add);
  std::for_each(more.begin(), more.end(), add);
  return Status(StatusCode::kResourceExhausted,
                fmt::format("not enough memory: {} are needed ({}), {} {}", bytes_text(bytes), text, limited_by,
                            bytes_text(max_bytes)));
}

Status MemoryBudget::check(std::span<const MemoryPart> more) const {
  const std::lock_guard lock(mutex_);
  return check_locked(more);
}

Status MemoryBudget::check_locked(std::span<const MemoryPart> more) const {
  std::uint64_t bytes = 0;
  for (const MemoryPart& part : more) bytes += part.bytes;
  if (limit_ != 0) {
    return bytes <= limit_ - std::min(limit_, taken()) ? Status() : over_budget(more, limit_, "the limit is");
  }
  ACCORD_ASSIGN_OR_RETURN(const AvailableMemory available, available_memory());
  return bytes <= available.bytes ? Status() : over_budget(more, available.bytes, available.limited_by + " has");
}

Status MemoryBudget::reserve(const MemoryPart& part) {
  const std::lock_guard lock(mutex_);
  if (limit_ != 0) ACCORD_RETURN_IF_ERROR(check_locked(std::span(&part, 1)));
  const auto known =
      std::find_if(parts_.begin(), parts_.end(), [&](const auto& other) { return other.what == part.what; });
  if (known == parts_.end()) {
    parts_.push_back(part);
  } else {
    known->bytes += part.bytes;
  }
  return Status();
}

void MemoryBudget::release(const MemoryPart& part) {
  const std::lock_guard lock(mutex_);
  for (MemoryPart& known : parts_) {
    if (known.what == part.what) known.bytes -= std::min(known.bytes, part.bytes);
  }
}

}  // namespace accord::engine
