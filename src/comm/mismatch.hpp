#pragma once
// Finds the calls in which ranks differ, and describes them in errors.

#include <optional>
#include <string_view>

#include "accord/status.hpp"
#include "exec/domain.hpp"

namespace accord::comm {

/// The requests of this rank and another one in the same round.
struct Difference {
  exec::RequestRecord mine;
  exec::RequestRecord theirs;
};

/// Returns the earliest difference that the records of `domain` still show; nullopt if they show that member `m` made
/// the same calls.
std::optional<Difference> find_difference(const exec::Domain& domain, int m);

/// kMismatch, with the call of each rank. `where` describes the call and the group; `other` is the rank at fault.
Status mismatch(const Difference& difference, std::string_view where, Rank me, Rank other);
/// kIo: the memory of `other` cannot be read, with `error`, an errno.
Status unreadable(std::string_view where, Rank other, int error);
/// kMismatch: this rank has released window `window`, which holds the buffer of `other`.
Status lost_window(std::string_view where, Rank me, Rank other, int window);
/// kMismatch for calls that no record shows any more.
Status mismatch_long_ago(std::string_view where, Rank me, Rank other);

}  // namespace accord::comm
