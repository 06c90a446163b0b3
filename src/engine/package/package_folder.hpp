#pragma once
// The files of a package, opened relative to its directory. Symbolic links are refused, so that only outside() reads a
// file that is not in the package.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"

namespace accord::engine {

/// A file in memory, read-only and shared with all processes that map it. It must not be changed in place while it is
/// mapped; replacing it with another file of the same name is safe.
class FileMapping {
 public:
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Tells the kernel that [offset, end) will be populated. Parts that fill large pages will be read as such; reading
  /// the rest begins now. Nothing outside the range is read.
  void expect(std::uint64_t offset, std::uint64_t end) const;
  /// Brings the pages of [offset, offset + count) into memory, reading missing ones from the disk, and no others.
  /// REQUIRES: they are in a range passed to expect(). Thread-safe: several threads may read several pieces at a time.
  /// Fails with kCorrupt if the file has become shorter.
  Status populate(std::uint64_t offset, std::uint64_t count) const;
  /// Removes the pages that are entirely inside [offset, end) from this process's memory.
  void release_pages(std::uint64_t offset, std::uint64_t end) const;

 private:
  friend class PackageFile;
  FileMapping(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  std::byte* address(std::uint64_t offset) const;
  void request(std::uint64_t offset, std::uint64_t end) const;
  Status fault(std::uint64_t offset, std::uint64_t end) const;
  std::span<const std::byte> bytes_;
  std::string name_;
};

/// One regular file of a package, open for reading. Its length is that at the time of opening.
class PackageFile {
 public:
  const std::string& name() const { return name_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Reads exactly `destination.size()` bytes from `offset` on. Fails with kCorrupt if the file ends before, or with
  /// kIo.
  Status read(std::uint64_t offset, std::span<std::byte> destination) const;
  /// Maps the entire file.
  Result<std::shared_ptr<const FileMapping>> map() const;
  /// Reads the first `bytes` of the file. REQUIRES: bytes <= bytes().
  Result<std::string> read_text(std::uint64_t bytes) const;

 private:
  friend class PackageFolder;
  PackageFile(UniqueFd fd, std::string name, std::uint64_t bytes)
      : fd_(std::move(fd)), name_(std::move(name)), bytes_(bytes) {}
  UniqueFd fd_;
  std::string name_;
  std::uint64_t bytes_;
};

/// The directory of a package.
class PackageFolder {
 public:
  /// Fails with kNotFound if there is nothing at `path`, or nothing like a package.
  static Result<PackageFolder> open(const std::string& path);

  /// Fails with kCorrupt if the file does not exist or is not a regular file (a symbolic link is not).
  Result<PackageFile> file(const std::string& name) const;
  /// As above. Also fails with kCorrupt unless the file has exactly `bytes`.
  Result<PackageFile> file(const std::string& name, std::uint64_t bytes) const;
  /// Opens a file outside the package by its path, absolute or relative to this directory. Follows symbolic links.
  /// Fails with kCorrupt, naming the file, unless it is a regular file of exactly `bytes`.
  Result<PackageFile> outside(const std::string& path, std::uint64_t bytes) const;
  /// Returns the names of all directory entries, sorted.
  Result<std::vector<std::string>> names() const;

 private:
  Result<PackageFile> open_at(const std::string& name, int flags) const;
  PackageFolder(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

}  // namespace accord::engine
