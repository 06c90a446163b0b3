#pragma once
// The file of this process that holds the flight records of its communicators.

#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "base/fd.hpp"
#include "base/ticks.hpp"
#include "flight/format.hpp"

namespace accord::flight {

/// An anonymous file that grows as communicators are created; the places of ended ones are reused. There is one for
/// each process, so that any number of communicators needs only one descriptor. Thread-safe.
class RecordFile {
 public:
  static RecordFile& of_this_process();

  /// Returns a mapped place for a record of `bytes` (whole pages), zero except for the magic, bytes and life of its
  /// header. If the file cannot be created (no descriptor left), returns memory of this process alone, which is
  /// logged: other processes cannot see it. Fails with kResourceExhausted if there is no memory either.
  Result<std::span<std::byte>> acquire(std::size_t bytes);
  /// Ends the life of a record and unmaps it.
  void release(std::span<std::byte> record);

  TickSource source() const { return source_; }
  /// When the first record was created.
  const Moment& start() const { return start_; }

 private:
  struct Place {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };
  /// Creates the file. REQUIRES: mutex_ is held.
  Status open();
  Result<Place> place_for(std::size_t bytes);

  const TickSource source_ = tick_source();
  const Moment start_ = moment_now(source_);
  std::mutex mutex_;
  UniqueFd fd_;
  FileHeader* header_ = nullptr;
  std::map<std::byte*, Place> in_use_;
  std::vector<Place> free_;
};

}  // namespace accord::flight
