// The word of a round tells all calls up to it, so the last round that both ranks have begun shows whether they differ. From
// there it goes back, as far as there are records, to the first round that differs.
#include "comm/mismatch.hpp"

#include <fmt/format.h>

namespace accord::comm {

std::optional<Difference> find_difference(const exec::Domain& domain, int m) {
  std::optional<Difference> found;
  const std::uint64_t last = domain.round();
  for (std::uint64_t round = last; round > 0 && round + exec::kLineDepth > last; --round) {
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

Status mismatch(const Difference& difference, std::string_view where, Rank me, Rank it) {
  const auto& [mine, theirs] = difference;
  if (theirs == mine)
    return Status(StatusCode::kMismatch,
                  fmt::format("{}: rank {} chose another algorithm than rank {}, or made another call before; "
                              "ACCORD_SELECT, the select option and registered plans must be equal on all ranks",
                              where, it, me),
                  {it});
  exec::RequestRecord with_my_parts = theirs;
  with_my_parts.parts = mine.parts;
  if (with_my_parts == mine)
    return Status(StatusCode::kMismatch,
                  fmt::format("{}: rank {} gave other counts of the parts than rank {}", where, it, me), {it});
  return Status(
      StatusCode::kMismatch,
      fmt::format("{}: rank {} called {}, rank {} called {}", where, it, to_string(theirs), me, to_string(mine)), {it});
}

Status mismatch_long_ago(std::string_view where, Rank me, Rank it) {
  return Status(
      StatusCode::kMismatch,
      fmt::format("{}: rank {} has made other calls before than rank {}; all ranks must make the same calls in "
                  "the same order",
                  where, it, me),
      {it});
}

}  // namespace accord::comm
