#pragma once
// Ranks that made different calls: which were they, and how that is told.

#include <optional>
#include <string_view>

#include "accord/status.hpp"
#include "exec/domain.hpp"

namespace accord::comm {

/// What this rank and another one were asked to do in one round.
struct Difference {
  exec::RequestRecord mine;
  exec::RequestRecord theirs;
};

/// The earliest one that the records of `domain` still show; nullopt if, as far as they show, member `m` made the same calls.
std::optional<Difference> find_difference(const exec::Domain& domain, int m);

/// kMismatch that says who called what. `where` tells the call and the group; `it` is the rank at fault.
Status mismatch(const Difference& difference, std::string_view where, Rank me, Rank it);
/// The same, if this rank has let go of the window that holds the buffer of `it`.
Status unreadable(std::string_view where, Rank it, int error);
Status lost_window(std::string_view where, Rank me, Rank it, int window);
/// The same, of calls that no record shows any more.
Status mismatch_long_ago(std::string_view where, Rank me, Rank it);

}  // namespace accord::comm
