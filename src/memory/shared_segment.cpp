// A memfd is a file without a name. The kernel frees it with its last descriptor and mapping, however their owners
// ended. The creator seals its size, so that no peer can truncate it and turn a read into SIGBUS. open() requires
// that seal before it maps a peer's segment.
#include "memory/shared_segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <optional>

#include "base/text.hpp"

namespace accord::memory {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr std::size_t kLongestName = 200;  // memfd_create() accepts 249 bytes

// Rounds up to whole pages; nullopt if no file can be that large.
std::optional<std::size_t> whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > static_cast<std::size_t>(std::numeric_limits<off_t>::max()) - page) return std::nullopt;
  return (bytes + page - 1) / page * page;
}

// Growing a file beyond the limit does not merely fail: SIGXFSZ would end the process.
Status check_file_limit(std::size_t bytes, std::string_view what) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return {};
  return Status(
      StatusCode::kResourceExhausted,
      fmt::format("{}: files of this process are limited to {}, and so is its shared memory (raise ulimit -f)", what,
                  bytes_text(limit.rlim_cur)));
}

Result<std::span<std::byte>> map(int fd, std::size_t bytes, std::string_view what) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (address == MAP_FAILED) return errno_status(errno, what);
  return std::span(static_cast<std::byte*>(address), bytes);
}

void unmap(std::span<std::byte> bytes) {
  if (!bytes.empty()) munmap(bytes.data(), bytes.size());
}

}  // namespace

Result<SharedSegment> SharedSegment::create(std::string_view name, std::size_t bytes) {
  const std::string what = fmt::format("shared segment {} of {}", quoted_text(name), bytes_text(bytes));
  const std::optional<std::size_t> size = whole_pages(bytes);
  if (bytes == 0) return Status(StatusCode::kInvalidArgument, what + ": the size must not be 0");
  if (!size) return Status(StatusCode::kResourceExhausted, what + ": no machine has so much memory");
  ACCORD_RETURN_IF_ERROR(check_file_limit(*size, what));
  const std::string short_name(name.substr(0, kLongestName));
  UniqueFd fd(memfd_create(short_name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_status(errno, what);
  if (ftruncate(fd.get(), static_cast<off_t>(*size)) != 0) return errno_status(errno, what);
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) return errno_status(errno, what);
  ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> mapping, map(fd.get(), *size, what));
  return SharedSegment(std::move(fd), mapping);
}

Result<SharedSegment> SharedSegment::open(UniqueFd fd, std::size_t bytes) {
  const std::string what = fmt::format("a peer's shared segment of {}", bytes_text(bytes));
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return errno_status(errno, what);
  const std::optional<std::size_t> size = whole_pages(bytes);
  if (bytes == 0 || !size || static_cast<std::size_t>(info.st_size) != *size) {
    return Status(StatusCode::kMismatch,
                  fmt::format("{}: {} bytes were expected, it has {}", what, bytes, info.st_size));
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return Status(StatusCode::kMismatch, what + ": it is not sealed against changes of its size");
  }
  ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> mapping, map(fd.get(), *size, what));
  return SharedSegment(std::move(fd), mapping);
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  if (this == &other) return *this;
  unmap(bytes_);
  fd_ = std::move(other.fd_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

SharedSegment::~SharedSegment() { unmap(bytes_); }

}  // namespace accord::memory
