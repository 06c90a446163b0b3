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

  /// Its owner only: the next call.
  void add(const exec::RequestRecord& record);
  /// How many calls its owner has made.
  std::uint64_t count() const;
  /// Nullopt if that call is not made yet, or too long ago.
  std::optional<exec::RequestRecord> record_of(std::uint64_t number) const;

 private:
  std::byte* entry_of(std::uint64_t number) const;
  std::byte* at_;
};

}  // namespace accord::comm
