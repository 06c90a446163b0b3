#pragma once
// What each rank has put into streams, where its peers can read it: NCCL itself would wait for ever for a rank that does something else.

#include <cstdint>
#include <optional>

#include "comm/mismatch.hpp"
#include "exec/domain.hpp"

namespace accord::comm {

/// In the control page of a window, beside the alarm. Calls are counted from 1.
class DeviceLedger {
 public:
  /// `window`: of the rank whose ledger it is, as it is mapped here.
  explicit DeviceLedger(std::byte* window);

  // Its owner only:
  /// The next call.
  void add(const exec::RequestRecord& record);
  /// Nothing of the calls up to this one runs on its device any more.
  void set_over(std::uint64_t number);
  /// No call comes after this.
  void leave();

  /// How many calls its owner has made.
  std::uint64_t count() const;
  /// Up to which of them all are over.
  std::uint64_t over() const;
  bool has_left() const;
  /// Nullopt if that call is not made yet, or too long ago.
  std::optional<exec::RequestRecord> record_of(std::uint64_t number) const;

 private:
  std::byte* entry_of(std::uint64_t number) const;
  std::byte* at_;  ///< how many calls, up to which they are over, whether its owner has left; then the entries
};

}  // namespace accord::comm
