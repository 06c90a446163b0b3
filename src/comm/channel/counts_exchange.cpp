// Every rank gets all counts, and so the same maximum. Each part has a sender and a receiver; one of them compares
// its two counts: the receiver in an all_to_all, the root in a gather or scatter.
#include "comm/channel/counts_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace accord::comm {

static_assert(sizeof(std::size_t) == sizeof(std::uint64_t));

void CountsExchange::begin(const Operation& operation, int members) {
  const plan::Extent& extent = *operation.extent;
  const plan::CollectiveTraits& traits = plan::traits_of(operation.record.collective);
  if (!traits.rooted) {
    own_counts_.assign(extent.input_parts.begin(), extent.input_parts.end());
  } else {
    own_counts_.assign(1, traits.input.divided ? extent.output_count : extent.input_count);
  }
  all_counts_.resize(own_counts_.size() * static_cast<std::size_t>(members));
}

Result<std::size_t> CountsExchange::longest_part(const Operation& operation, int me) const {
  const plan::Extent& extent = *operation.extent;
  const std::span<const std::size_t> mine = extent.output_parts.empty() ? extent.input_parts : extent.output_parts;
  const bool i_receive = !extent.output_parts.empty();
  const std::size_t row = own_counts_.size();
  for (std::size_t rank = 0; rank < mine.size(); ++rank) {
    const std::uint64_t theirs = all_counts_[rank * row + (row > 1 ? static_cast<std::size_t>(me) : 0)];
    if (theirs == mine[rank]) continue;
    const std::string_view dtype = accord::to_string(operation.record.dtype);
    return Status(
        StatusCode::kMismatch,
        i_receive
            ? fmt::format("rank {} sends {} x {} to rank {}, which expects {}", rank, theirs, dtype, me, mine[rank])
            : fmt::format("rank {} sends {} x {} to rank {}, which expects {}", me, mine[rank], dtype, rank, theirs),
        {static_cast<Rank>(rank)});
  }
  return *std::max_element(all_counts_.begin(), all_counts_.end());
}

}  // namespace accord::comm
