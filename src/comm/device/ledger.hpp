#pragma once
// Calls that each rank has put into streams, where its peers can read them: NCCL itself would wait for ever for a
// rank that does something else.

#include <cstdint>
#include <optional>

#include "comm/mismatch.hpp"
#include "exec/domain.hpp"

namespace accord::comm {

/// Stored in the control page of a window, beside the alarm. Calls are counted from 1.
class DeviceLedger {
 public:
  /// `window`: of the ledger's owner, as mapped here.
  explicit DeviceLedger(std::byte* window);

  // For the owner only:
  /// Adds the next call.
  void add(const exec::RequestRecord& record);
  /// Publishes that nothing of the calls up to this one runs on the owner's device any more.
  void set_over(std::uint64_t number);
  /// Publishes that no call follows.
  void leave();

  /// Number of calls that the owner has made.
  std::uint64_t count() const;
  /// Number of the call up to which all are over.
  std::uint64_t over() const;
  bool has_left() const;
  /// Nullopt if that call has not been made yet, or was made too long ago.
  std::optional<exec::RequestRecord> record_of(std::uint64_t number) const;

 private:
  std::byte* entry_of(std::uint64_t number) const;
  std::byte* at_;  ///< number of calls, call up to which they are over, whether the owner has left; then the entries
};

}  // namespace accord::comm
