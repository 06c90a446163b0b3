#pragma once
// Which ranks may still use memory of this rank's device.
//
// CUDA does not define what happens to memory that its owner frees while another process has it open, or while kernels
// of other ranks reach it through a switch. A rank that uses memory of another one therefore holds a lease on it: a
// Unix socket to the owner, over which it reports that it has closed the memory. The end of a process counts as such a
// report once the operating system has taken the process down.

#include <functional>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "transport/shm/process_watch.hpp"

namespace accord::comm {

/// The right of one rank to use memory of another one, until it is destroyed in the process that took it.
class MemoryLease {
 public:
  /// `name`: of the owner's MemoryLeases. The owner is on this host, possibly in this process.
  static Result<MemoryLease> take(const std::string& name);
  MemoryLease() = default;
  MemoryLease(MemoryLease&&) = default;
  /// REQUIRES: this one is empty.
  MemoryLease& operator=(MemoryLease&&) = default;
  ~MemoryLease();

 private:
  explicit MemoryLease(UniqueFd line);
  UniqueFd line_;
  int generation_ = 0;  ///< of forks, in which it was taken
};

/// The leases of other ranks on memory of this one.
class MemoryLeases {
 public:
  /// Begins to listen. Costs one descriptor, and one for each lease.
  static Result<MemoryLeases> create();
  /// What the others need for MemoryLease::take().
  const std::string& name() const { return name_; }
  /// Accepts the leases that were taken, and lets no more be taken. A lease that cannot be accepted never ends.
  void accept();
  /// Calls accept() if that is still to do. Returns whether all leases have ended. Never blocks. Cost: one system call
  /// for each lease that has not.
  bool have_ended();

 private:
  struct Holder {
    UniqueFd line;
    transport::ProcessWatch process;
  };
  static bool has_ended(const Holder& holder);

  std::string name_;
  UniqueFd listener_;  ///< until accept()
  std::vector<Holder> holders_;
  bool has_unknown_ = false;  ///< a lease could not be accepted
};

/// Calls `release` once `leases` have ended: here if they end within a fifth of a second, as they do if all ranks close
/// at about the same time, else in a later call of release_waiting(). Not in a thread of its own: CUDA lets the release
/// of memory wait for all that runs on the device, so it must come where the program expects it. Memory that is left
/// when the process exits goes with it.
void release_after(MemoryLeases leases, std::function<void()> release);
/// Releases memory whose leases have ended since.
void release_waiting();

}  // namespace accord::comm
