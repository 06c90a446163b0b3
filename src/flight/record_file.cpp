// A reader in another process goes from record to record by their lengths, so a place keeps its length and the first
// page of its header for ever. The other pages of a place that is given back are returned to the system. The file is
// sealed against shrinking, so that a reader's mapping never ends in SIGBUS.
#include "flight/record_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "transport/per_process.hpp"

namespace accord::flight {
namespace {

Result<std::byte*> map(int fd, std::size_t offset, std::size_t bytes) {
  const int kind = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) return errno_status(errno, "flight recorder");
  return static_cast<std::byte*>(address);
}

}  // namespace

RecordFile& RecordFile::of_this_process() { return transport::per_process<RecordFile>(); }

Status RecordFile::open() {
  UniqueFd fd(memfd_create(kFileName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), kPage) != 0 || fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    return errno_status(errno, "flight recorder");
  ACCORD_ASSIGN_OR_RETURN(std::byte* const first, map(fd.get(), 0, kPage));
  header_ = new (first) FileHeader{.process = getpid(),
                                   .tick_source = static_cast<std::uint64_t>(source_),
                                   .ticks = start_.ticks,
                                   .monotonic_ns = start_.monotonic_ns,
                                   .unix_ns = start_.unix_ns,
                                   .end = kPage};
  word(header_->magic).store(kFileMagic, std::memory_order_release);
  fd_ = std::move(fd);
  return {};
}

Result<RecordFile::Place> RecordFile::place_for(std::size_t bytes) {
  const auto fits = std::find_if(free_.begin(), free_.end(), [&](const Place& p) { return p.bytes == bytes; });
  if (fits != free_.end()) {
    const Place place = *fits;
    free_.erase(fits);
    return place;
  }
  if (!fd_.valid()) ACCORD_RETURN_IF_ERROR(open());
  const std::size_t end = word(header_->end).load(std::memory_order_relaxed);
  if (ftruncate(fd_.get(), static_cast<off_t>(end + bytes)) != 0) return errno_status(errno, "flight recorder");
  return Place{.offset = end, .bytes = bytes};
}

Result<std::span<std::byte>> RecordFile::acquire(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const Result<Place> place = place_for(bytes);
  Result<std::byte*> address = place.ok() ? map(fd_.get(), place->offset, bytes) : place.status();
  if (!address.ok()) {
    log().warn("{}; `accord diagnose --pid` will not see a communicator of this process", address.status().message());
    if (place.ok() && place->offset != word(header_->end).load(std::memory_order_relaxed)) free_.push_back(*place);
    ACCORD_ASSIGN_OR_RETURN(std::byte* const own, map(-1, 0, bytes));
    address = own;
  } else {
    in_use_.emplace(*address, *place);
  }
  auto* header = reinterpret_cast<RecordHeader*>(*address);
  header->bytes = bytes;
  word(header->magic).store(kRecordMagic, std::memory_order_release);
  if (place.ok() && header_ != nullptr && place->offset == word(header_->end).load(std::memory_order_relaxed))
    word(header_->end).store(place->offset + bytes, std::memory_order_release);
  return std::span(*address, bytes);
}

void RecordFile::release(std::span<std::byte> record) {
  const std::lock_guard lock(mutex_);
  auto* header = reinterpret_cast<RecordHeader*>(record.data());
  const auto place = in_use_.find(record.data());
  if (place != in_use_.end()) {
    word(header->life).fetch_add(1, std::memory_order_acq_rel);
    const auto rest = static_cast<off_t>(place->second.offset + kPage);
    (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, rest,
                    static_cast<off_t>(record.size() - kPage));
    free_.push_back(place->second);
    in_use_.erase(place);
  }
  munmap(record.data(), record.size());
}

}  // namespace accord::flight
