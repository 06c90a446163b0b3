#pragma once
// Memory straight from the operating system. It is returned at once when freed, and untouched pages cost nothing.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord::engine {

/// Anonymous private memory, zeroed, aligned to a page.
class Region {
 public:
  Region() = default;
  /// Fails with kResourceExhausted, naming `what`, if the system refuses.
  static Result<Region> allocate(std::size_t bytes, std::string_view what);

  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  std::span<std::byte> bytes() const { return bytes_; }
  /// Returns the pages to the system and keeps the addresses: they can still be read and written, and read as zero
  /// from now on.
  void clear();

 private:
  explicit Region(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

/// Memory that only grows. Outgrown memory keeps its addresses, but not its pages, until the end, because callers may
/// still look there.
class GrowingRegion {
 public:
  /// `what`: the name of the memory in errors; must outlive this object.
  explicit GrowingRegion(const char* what) : what_(what) {}
  /// Makes room for `bytes`. Fails with kResourceExhausted if the system refuses.
  Status grow(std::size_t bytes);
  std::byte* data() const { return region_.data(); }
  std::size_t size() const { return region_.size(); }

 private:
  const char* what_;
  Region region_;
  std::vector<Region> outgrown_;
};

}  // namespace accord::engine
