#pragma once
// The files of a package, opened so that nothing outside it is ever read: relative to its directory, no symbolic links.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"

namespace accord::engine {

/// A file in memory, read-only and shared with all processes that map it. It must not be changed while it is mapped; replacing it
/// by another one of its name is no change.
class FileMapping {
 public:
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Tells the kernel that [offset, end) will be populated: what fills large pages is read into such, the rest begins to be
  /// read now, and nothing outside.
  void expect(std::uint64_t offset, std::uint64_t end) const;
  /// Makes the pages of [offset, offset + count) be there, read from the disk where they are not: these, which were expected, and
  /// no others. Thread-safe: several threads read several pieces at a time. kCorrupt if the file is shorter by now.
  Status populate(std::uint64_t offset, std::uint64_t count) const;
  /// Takes pages that lie between `offset` and `end` as a whole out of this process's memory.
  void forget(std::uint64_t offset, std::uint64_t end) const;

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
  /// Reads exactly `destination` from byte `offset` on; kCorrupt if the file ends before, kIo.
  Status read(std::uint64_t offset, std::span<std::byte> destination) const;
  /// All of it.
  Result<std::shared_ptr<const FileMapping>> map() const;
  /// The first `bytes` of it, REQUIRES: bytes <= bytes().
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
  /// kNotFound if there is nothing at `path`, or nothing like a package.
  static Result<PackageFolder> open(const std::string& path);

  /// kCorrupt if there is no such file or it is no regular file (a symbolic link is none).
  Result<PackageFile> file(const std::string& name) const;
  /// As above, and kCorrupt unless it has exactly `bytes`.
  Result<PackageFile> file(const std::string& name, std::uint64_t bytes) const;
  /// A file outside, by its path, absolute or from this directory; a symbolic link is followed. kCorrupt, naming it, unless it is a
  /// regular file of exactly `bytes`.
  Result<PackageFile> outside(const std::string& path, std::uint64_t bytes) const;
  /// Names of all that lies in it, sorted.
  Result<std::vector<std::string>> names() const;

 private:
  Result<PackageFile> open_at(const std::string& name, int flags) const;
  PackageFolder(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

}  // namespace accord::engine
