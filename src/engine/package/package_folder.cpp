// Files are opened with openat() relative to the package's directory; parse_manifest() accepts no name that could
// leave it. O_NOFOLLOW refuses symbolic links, O_NONBLOCK keeps a FIFO from blocking the open, and fstat() then
// refuses anything but a regular file.
//
// A mapping is read in large pages (MADV_HUGEPAGE: 2 MiB, which the kernel keeps in its cache and maps with one entry)
// wherever such a page contains only requested bytes. The ends are read in pages of 4 KB, because larger ones would
// also read what belongs to other ranks.

#include "engine/package/package_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "engine/graph/strict_json.hpp"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace accord::engine {
namespace {

// About the most that the kernel reads for one request. The first requests are served while the last are issued.
constexpr std::uint64_t kRequest = 128 << 10;

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// Size of a page that one PMD entry maps; 0 if the kernel has none.
std::uint64_t large_page_bytes() {
  static const std::uint64_t bytes = [] {
    const auto text = read_file("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", 64);
    return text.ok() ? std::strtoull(text->c_str(), nullptr, 10) : 0;
  }();
  return bytes;
}

}  // namespace

Status PackageFile::read(std::uint64_t offset, std::span<std::byte> destination) const {
  std::size_t done = 0;
  while (done < destination.size()) {
    const auto got =
        pread(fd_.get(), destination.data() + done, destination.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(errno, name_);
    if (got == 0)
      return corrupt_at(
          name_, fmt::format("ends at byte {}, expected {} more bytes", offset + done, destination.size() - done));
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Result<std::shared_ptr<const FileMapping>> PackageFile::map() const {
  void* address = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) return errno_status(errno, name_);
  // Read-ahead would read what belongs to other ranks.
  ::madvise(address, bytes_, MADV_RANDOM);
  return std::shared_ptr<const FileMapping>(new FileMapping({static_cast<const std::byte*>(address), bytes_}, name_));
}

FileMapping::~FileMapping() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

void FileMapping::expect(std::uint64_t offset, std::uint64_t end) const {
  const std::uint64_t large = large_page_bytes();
  const std::uint64_t first = large == 0 ? end : std::min(end, (offset + large - 1) / large * large);
  const std::uint64_t last = large == 0 ? end : std::max(first, end / large * large);
  if (first < last) ::madvise(address(first), last - first, MADV_HUGEPAGE);
  request(offset, first);
  request(last, end);
}

Status FileMapping::populate(std::uint64_t offset, std::uint64_t count) const {
  const std::uint64_t end = offset + count;
  const std::uint64_t large = large_page_bytes();
  // The first page brings in the large page around it. Kernels without large pages for files (before 5.18) would read
  // the others one at a time, so the rest is requested here. If all pages are in memory, the request costs little.
  for (std::uint64_t at = offset, next = 0; large != 0 && count > kRequest && at < end; at = next) {
    next = std::min(end, (at / large + 1) * large);
    ACCORD_RETURN_IF_ERROR(fault(at, at + 1));
    request(at, next);
  }
  return fault(offset, end);
}

std::byte* FileMapping::address(std::uint64_t offset) const { return const_cast<std::byte*>(bytes_.data()) + offset; }

void FileMapping::request(std::uint64_t offset, std::uint64_t end) const {
  for (std::uint64_t at = offset / page_bytes() * page_bytes(); at < end; at += kRequest) {
    ::madvise(address(at), std::min(kRequest, end - at), MADV_WILLNEED);
  }
}

Status FileMapping::fault(std::uint64_t offset, std::uint64_t end) const {
  const std::uint64_t first = offset / page_bytes() * page_bytes();
  while (::madvise(address(first), end - first, MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL || errno == ENOSYS) break;  // kernels before 5.14: pages are read on first access
    if (errno == EFAULT)
      return corrupt_at(name_, fmt::format("has no bytes {} to {}: it was truncated", offset, end - 1));
    return errno_status(errno, name_);
  }
  return {};
}

void FileMapping::release_pages(std::uint64_t offset, std::uint64_t end) const {
  const std::uint64_t page = page_bytes();
  const std::uint64_t first = (offset + page - 1) / page * page;
  const std::uint64_t last = end == bytes_.size() ? end : end / page * page;
  if (first < last) ::madvise(address(first), last - first, MADV_DONTNEED);
}

Result<std::string> PackageFile::read_text(std::uint64_t bytes) const {
  std::string text(bytes, '\0');
  ACCORD_RETURN_IF_ERROR(read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<PackageFolder> PackageFolder::open(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOTDIR) {
    return Status(StatusCode::kNotFound, fmt::format("{} is not an engine package: a package is a directory", path));
  }
  if (!fd.valid()) return errno_status(errno, fmt::format("engine package {}", path));
  if (faccessat(fd.get(), "manifest.json", F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
    return Status(StatusCode::kNotFound, fmt::format("{} is not an engine package: it has no manifest.json", path));
  }
  return PackageFolder(std::move(fd), path);
}

Result<PackageFile> PackageFolder::file(const std::string& name) const { return open_at(name, O_NOFOLLOW); }

Result<PackageFile> PackageFolder::outside(const std::string& path, std::uint64_t bytes) const {
  ACCORD_ASSIGN_OR_RETURN(auto opened, open_at(path, 0));
  if (opened.bytes() == bytes) return opened;
  return corrupt_at(path, fmt::format("has {} bytes, but had {} when the package was created: it was changed",
                                      opened.bytes(), bytes));
}

Result<PackageFile> PackageFolder::open_at(const std::string& name, int flags) const {
  UniqueFd fd(openat(fd_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags));
  if (!fd.valid() && errno == ENOENT) return corrupt_at(name, "is missing from the package");
  if (!fd.valid() && errno == ELOOP) return corrupt_at(name, "is a symbolic link; a package must contain its files");
  if (!fd.valid()) return errno_status(errno, name);
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return errno_status(errno, name);
  if (!S_ISREG(info.st_mode)) return corrupt_at(name, "is not a regular file");
  return PackageFile(std::move(fd), name, static_cast<std::uint64_t>(info.st_size));
}

Result<PackageFile> PackageFolder::file(const std::string& name, std::uint64_t bytes) const {
  ACCORD_ASSIGN_OR_RETURN(auto opened, file(name));
  if (opened.bytes() != bytes) {
    return corrupt_at(name, fmt::format("has {} bytes, expected {}: it was {}", opened.bytes(), bytes,
                                        opened.bytes() < bytes ? "truncated" : "changed"));
  }
  return opened;
}

Result<std::vector<std::string>> PackageFolder::names() const {
  UniqueFd copy(openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy.valid()) return errno_status(errno, path_);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(fdopendir(copy.get()), closedir);
  if (!folder) return errno_status(errno, path_);
  copy.release();  // owned by the DIR
  std::vector<std::string> names;
  errno = 0;
  while (const auto* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) return errno_status(errno, path_);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace accord::engine
