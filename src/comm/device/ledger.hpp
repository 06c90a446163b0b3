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
  /// Adds the next call. `stream`: identifies the stream that it is put into, among all of the owner's process; 0:
  /// none, as it is captured.
  void add(const exec::RequestRecord& record, std::uint64_t stream);
  /// Publishes that no call follows.
  void leave();

  /// Number of calls that the owner has made.
  std::uint64_t count() const;
  bool has_left() const;
  /// Whether a call was captured. It is counted once, and not again whenever its graph is launched.
  bool has_captured() const;
  /// Nullopt if that call has not been made yet, or was made too long ago.
  std::optional<exec::RequestRecord> record_of(std::uint64_t number) const;
  /// The stream of that call; 0 if it is not known.
  std::uint64_t stream_of(std::uint64_t number) const;

 private:
  std::byte* entry_of(std::uint64_t number) const;
  std::byte* at_;  ///< number of calls, whether the owner has left, and has captured; then the entries
};

}  // namespace accord::comm
