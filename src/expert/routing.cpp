// The first pass over the choices counts the rows of each expert; the count so far is a choice's position among them.
// Padding and offsets follow from the counts. A second pass adds the offsets.
#include "expert/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/rounding.hpp"

namespace accord::expert {
namespace {

template <typename Id>
void read_ids_of(const ConstBuffer& ids, int top_k, int experts, std::span<std::int32_t> to, ExpertRankCounts& counts) {
  const auto* const bytes = static_cast<const std::byte*>(ids.data);
  for (std::size_t i = 0; i < ids.count; ++i) {
    Id id;
    std::memcpy(&id, bytes + i * sizeof(Id), sizeof(Id));
    const std::size_t first = i - i % static_cast<std::size_t>(top_k);
    const std::int32_t* const earlier = to.data() + first;
    const std::int32_t* const here = to.data() + i;
    to[i] = -1;
    if (id == -1) continue;
    if (id < 0 || id >= experts)
      ++counts.out_of_range;
    else if (std::find(earlier, here, static_cast<std::int32_t>(id)) != here)
      ++counts.duplicates;
    else
      to[i] = static_cast<std::int32_t>(id);
  }
}

/// Computes counts, offsets and the rows that each rank gets, from rows.
void lay_out(Routing& routing, const Placement& placement) {
  for (Rank rank = 0; rank < placement.ranks(); ++rank) {
    std::int64_t offset = 0;
    for (int place = placement.first_place[rank]; place < placement.first_place[rank + 1]; ++place) {
      routing.counts[place] = round_up(routing.rows[place], std::int64_t{routing.shape.alignment});
      routing.offsets[place] = offset;
      offset += routing.counts[place];
    }
    routing.ranks[rank].recv_rows = offset;
  }
}

/// Computes rows and slots from places.
void number_slots(Routing& routing, const Placement& placement) {
  std::fill(routing.rows.begin(), routing.rows.end(), 0);
  const std::int64_t choices = routing.choices();
  for (std::int64_t c = 0; c < choices; ++c) {
    const std::int32_t place = routing.place[c];
    if (place >= 0) routing.slot[c] = static_cast<std::int32_t>(routing.rows[place]++);
  }
  lay_out(routing, placement);
  for (std::int64_t c = 0; c < choices; ++c) {
    const std::int32_t place = routing.place[c];
    if (place >= 0) routing.slot[c] += static_cast<std::int32_t>(routing.offsets[place]);
  }
}

void drop(Routing& routing, Rank rank, std::int64_t token, int k, std::int64_t choice) {
  routing.place[choice] = -1;
  ++routing.ranks[rank].dropped;
  routing.dropped.push_back({rank, static_cast<std::int32_t>(token), k});
}

bool overflows(const Routing& routing, Rank rank) {
  return routing.shape.max_recv_rows > 0 && routing.ranks[rank].total_rows > routing.shape.max_recv_rows;
}

/// A choice that may be dropped.
struct Candidate {
  double weight;
  std::int64_t choice;
  /// Drop order: the lower weight first, then the later choice.
  bool operator<(const Candidate& other) const {
    return weight != other.weight ? weight < other.weight : choice > other.choice;
  }
};

/// Sets `place` to -1 for the choices sent to `rank` that have to be dropped.
void drop_for_rank(Routing& routing, const Placement& placement, std::span<const double> weights, Rank rank) {
  const auto is_here = [&](std::int32_t place) { return place >= 0 && placement.holder[place] == rank; };
  std::vector<Candidate> candidates;
  for (std::int64_t c = 0; c < routing.choices(); ++c)
    if (is_here(routing.place[c])) candidates.push_back({weights[c] == weights[c] ? weights[c] : -INFINITY, c});
  std::sort(candidates.begin(), candidates.end());

  const std::int64_t alignment = routing.shape.alignment;
  std::int64_t remaining = routing.ranks[rank].total_rows;
  std::vector<std::int64_t> rows(routing.rows);
  std::size_t dropped = 0;
  for (; remaining > routing.shape.max_recv_rows; ++dropped) {
    std::int64_t& of_expert = rows[routing.place[candidates[dropped].choice]];
    if (--of_expert % alignment == 0) remaining -= alignment;
  }
  for (std::size_t i = dropped; i-- > 0;) {
    std::int32_t& place = routing.place[candidates[i].choice];
    const bool fits = rows[place] % alignment != 0;
    if (fits)
      ++rows[place];
    else
      place = -1;
  }
}

}  // namespace

void reserve(Routing& routing, const Placement& placement, std::int64_t choices) {
  const auto count = static_cast<std::size_t>(choices);
  for (std::vector<std::int32_t>* list : {&routing.expert, &routing.place, &routing.slot}) list->resize(count);
  for (std::vector<std::int64_t>* list : {&routing.rows, &routing.counts, &routing.offsets})
    list->resize(placement.expert.size());
  routing.ranks.resize(placement.ranks());
  routing.first_token.resize(placement.ranks() + 1);
}

void read_ids(const ConstBuffer& ids, int top_k, int experts, std::span<std::int32_t> to, ExpertRankCounts& counts) {
  if (ids.dtype == DType::kInt64)
    read_ids_of<std::int64_t>(ids, top_k, experts, to, counts);
  else
    read_ids_of<std::int32_t>(ids, top_k, experts, to, counts);
}

void route(Routing& routing, const Placement& placement) {
  routing.dropped.clear();
  routing.overflows = false;
  routing.for_each_choice([&](Rank rank, std::int64_t token, int, std::int64_t choice) {
    const std::int32_t expert = routing.expert[choice];
    routing.place[choice] = expert < 0 ? -1 : placement.place_of(expert, rank, token);
  });
  number_slots(routing, placement);
  for (Rank rank = 0; rank < placement.ranks(); ++rank) {
    ExpertRankCounts& counts = routing.ranks[rank];
    counts.tokens = routing.tokens_of(rank);
    counts.dropped = 0;
    counts.total_rows = counts.recv_rows;
    routing.overflows |= overflows(routing, rank);
  }
}

void drop_by_slot(Routing& routing, const Placement& placement) {
  const std::int64_t capacity = routing.shape.max_recv_rows;
  routing.for_each_choice([&](Rank rank, std::int64_t token, int k, std::int64_t choice) {
    if (routing.place[choice] >= 0 && routing.slot[choice] >= capacity) drop(routing, rank, token, k, choice);
  });
  for (Rank rank = 0; rank < placement.ranks(); ++rank) {
    for (int place = placement.first_place[rank]; place < placement.first_place[rank + 1]; ++place) {
      const std::int64_t room = std::max<std::int64_t>(0, capacity - routing.offsets[place]);
      routing.counts[place] = std::min(routing.counts[place], room);
      routing.rows[place] = std::min(routing.rows[place], room);
    }
    routing.ranks[rank].recv_rows = std::min(routing.ranks[rank].recv_rows, capacity);
  }
}

void drop_by_weight(Routing& routing, const Placement& placement, std::span<const double> weights) {
  for (Rank rank = 0; rank < placement.ranks(); ++rank)
    if (overflows(routing, rank)) drop_for_rank(routing, placement, weights, rank);
  routing.for_each_choice([&](Rank rank, std::int64_t token, int k, std::int64_t choice) {
    if (routing.expert[choice] >= 0 && routing.place[choice] < 0) drop(routing, rank, token, k, choice);
  });
  number_slots(routing, placement);
}

Status overflow_error(const Routing& routing, std::string_view group) {
  std::string text;
  std::vector<Rank> ranks;
  for (Rank r = 0; r < static_cast<Rank>(routing.ranks.size()); ++r) {
    const std::int64_t rows = routing.ranks[to_size(r)].total_rows;
    if (rows <= routing.shape.max_recv_rows) continue;
    text += fmt::format("{}rank {} would get {} rows", ranks.empty() ? "" : ", ", r, rows);
    ranks.push_back(r);
  }
  return {StatusCode::kResourceExhausted,
          fmt::format("prepare on group \"{}\": {}; max_recv_rows is {}", group, text, routing.shape.max_recv_rows),
          ranks};
}

}  // namespace accord::expert
