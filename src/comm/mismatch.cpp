// The word of a round covers all calls up to it, so the last round that both ranks have begun shows whether they
// differ. From there the search goes back, as far as there are records, to the first round that differs.
#include "comm/mismatch.hpp"

#include <fmt/format.h>

#include <cstring>

namespace accord::comm {

std::optional<Difference> find_difference(const exec::Domain& domain, int m) {
  std::optional<Difference> found;
  const std::uint64_t last = domain.round();
  for (std::uint64_t round = last; round > 0 && round + exec::kCellDepth > last; --round) {
    Difference difference;
    std::uint64_t my_word = 0;
    std::uint64_t its_word = 0;
    if (!domain.record_of(domain.me(), round, &my_word, &difference.mine)) break;
    if (!domain.record_of(m, round, &its_word, &difference.theirs)) continue;
    if (its_word == my_word) break;
    found = difference;
  }
  return found;
}

Status mismatch(const Difference& difference, std::string_view where, Rank me, Rank other) {
  const auto& [mine, theirs] = difference;
  exec::RequestRecord with_my_parts = theirs;
  with_my_parts.parts = mine.parts;
  if (theirs == mine || (with_my_parts == mine && mine.phase == exec::Phase::kRegistered))
    return Status(
        StatusCode::kMismatch,
        fmt::format("{}: rank {} chose another algorithm than rank {}, or made another call before; "
                    "ACCORD_SELECT, the select option and registered plans must be equal on all ranks; if an algorithm "
                    "depends on whether a call is in place, that must be equal as well",
                    where, other, me),
        {other});
  exec::RequestRecord with_my_phase = theirs;
  with_my_phase.phase = mine.phase;
  with_my_phase.parts = mine.parts;
  if (with_my_phase == mine && has_equal_parts(mine.phase) && has_equal_parts(theirs.phase)) {
    const bool mine_are = mine.phase == exec::Phase::kRegistered;
    return Status(
        StatusCode::kMismatch,
        fmt::format("{}: the buffers of rank {} are in windows of the group, those of rank {} are not; the buffers of "
                    "all ranks must be in windows, or those of none",
                    where, mine_are ? me : other, mine_are ? other : me),
        {other});
  }
  if (with_my_parts == mine)
    return Status(StatusCode::kMismatch,
                  fmt::format("{}: rank {} passed other counts of the parts than rank {}", where, other, me), {other});
  // For a message the receiver finds the difference.
  const bool message = mine.collective == Collective::kSendRecv;
  return Status(StatusCode::kMismatch,
                fmt::format("{}: rank {} called {}, rank {} called {}", where, other,
                            message ? to_string(theirs, "send") : to_string(theirs), me,
                            message ? to_string(mine, "recv") : to_string(mine)),
                {other});
}

Status unreadable(std::string_view where, Rank other, int error) {
  return Status(StatusCode::kIo,
                fmt::format("{}: the memory of rank {} cannot be read: {}; set ACCORD_SINGLE_COPY=off to avoid this",
                            where, other, std::strerror(error)),
                {other});
}

Status lost_window(std::string_view where, Rank me, Rank other, int window) {
  return Status(
      StatusCode::kMismatch,
      fmt::format("{}: the buffer of rank {} is in window {}, which rank {} has released", where, other, window, me),
      {me});
}

Status mismatch_long_ago(std::string_view where, Rank me, Rank other) {
  return Status(
      StatusCode::kMismatch,
      fmt::format(
          "{}: the earlier calls of rank {} differ from those of rank {}; all ranks must make the same calls in "
          "the same order",
          where, other, me),
      {other});
}

}  // namespace accord::comm
