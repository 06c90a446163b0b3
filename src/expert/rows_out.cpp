// Within a domain a row is copied once. Its rank writes it to slots that are in windows; otherwise the rank of the
// slots reads it, from a window or from the staging memory of the row's rank. Tokens are copied to staging memory in
// rounds: the next round is copied while the current one is read. A row that other domains need is sent once to each
// of them, to the proxy there, which stores it behind its own tokens in staging memory, where its domain reads it.
#include "expert/rows_out.hpp"

#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"

namespace accord::expert {
RowsOut::RowsOut(Group& group, const Handle& handle, RowSize size, ConstRowsAt tokens, RowsAt slots)
    : group_(group),
      handle_(handle),
      routing_(handle.routing),
      me_(group.rank()),
      size_(size),
      tokens_(tokens),
      slots_(slots) {
  const Domains& domains = group_.domains_;
  stages_ = domains.count() > 1;
  std::int64_t max_tokens = 0;
  for (Rank from = 0; from < group_.size(); ++from) {
    max_tokens = std::max(max_tokens, routing_.tokens_of(from));
    for (Rank to = 0; to < group_.size(); ++to)
      stages_ |= from != to && routing_.tokens_of(from) > 0 && routing_.ranks[to].recv_rows > 0 &&
                 !is_written_in_place(to) && !is_read_in_place(from);
  }
  const std::size_t rows_in_staging = group_.staging(me_, 0).size() / size_.both();
  chunk_ = stages_ ? static_cast<std::int64_t>(rows_in_staging / (1 + group_.max_guests_))
                   : std::max<std::int64_t>(max_tokens, 1);
  rounds_ = quotient_up(max_tokens, chunk_);
}

bool RowsOut::is_read_in_place(Rank from) const {
  const CallRecord& record = group_.rendezvous_.records()[from];
  return record.input != exec::kNoPlace && (size_.scales == 0 || record.input_scales != exec::kNoPlace);
}
bool RowsOut::is_written_in_place(Rank to) const {
  const CallRecord& record = group_.rendezvous_.records()[to];
  return record.output != exec::kNoPlace && (size_.scales == 0 || record.output_scales != exec::kNoPlace);
}

Status RowsOut::run() {
  clear_padding();
  push();
  if (rounds_ > 0 && stages_) ACCORD_RETURN_IF_ERROR(begin_round(0));
  for (std::int64_t round = 0; round < rounds_; ++round) {
    if (stages_) {
      ACCORD_RETURN_IF_ERROR(group_.communicator_.barrier());
      if (round + 1 < rounds_) ACCORD_RETURN_IF_ERROR(begin_round(round + 1));
    }
    pull(round);
  }
  return {};
}

void RowsOut::clear_padding() {
  for (int place = handle_.first_place(); place < handle_.last_place(); ++place) {
    const auto first = static_cast<std::size_t>(routing_.offsets[place] + routing_.rows[place]);
    const auto rows = static_cast<std::size_t>(routing_.counts[place] - routing_.rows[place]);
    if (rows == 0) continue;
    std::memset(slots_.rows + first * size_.row, 0, rows * size_.row);
    if (size_.scales > 0) std::memset(slots_.scales + first * size_.scales, 0, rows * size_.scales);
  }
}

void RowsOut::store(RowsAt to, ConstRowsAt row) const {
  kernels::copy(to.rows, row.rows, size_.row, how_);
  if (size_.scales > 0) std::memcpy(to.scales, row.scales, size_.scales);
}

void RowsOut::store_slot(std::int64_t slot, ConstRowsAt row) {
  const auto at = static_cast<std::size_t>(slot);
  store({slots_.rows + at * size_.row, slots_.scales + at * size_.scales}, row);
}

// Whether copies bypass the cache is learned from their measured cost, for calls of each size.
void RowsOut::push() {
  std::int64_t rows = 0;
  for (Rank to = 0; to < group_.size(); ++to)
    if (is_mine_to_write(to)) rows += handle_.traffic_from_to(me_, to);
  group_.push_stores_.run(static_cast<std::size_t>(rows) * size_.row, [&](kernels::Store how) {
    how_ = how;
    push_rows();
  });
}

bool RowsOut::is_mine_to_write(Rank to) const {
  return to == me_ || (group_.domains_.shared(to, me_) && is_written_in_place(to));
}

void RowsOut::push_rows() {
  const std::span<const CallRecord> records = group_.rendezvous_.records();
  for (std::int64_t token = 0; token < handle_.tokens(); ++token) {
    const auto t = static_cast<std::size_t>(token);
    const ConstRowsAt row{tokens_.rows + t * size_.row, tokens_.scales + t * size_.scales};
    const std::int64_t first = routing_.choice(me_, token, 0);
    for (std::int64_t c = first; c < first + routing_.shape.top_k; ++c) {
      if (routing_.place[c] < 0) continue;
      const Rank to = handle_.holder(c);
      if (!is_mine_to_write(to)) continue;
      if (to == me_) {
        store_slot(routing_.slot[c], row);
        continue;
      }
      const auto slot = static_cast<std::size_t>(routing_.slot[c]);
      std::byte* const scales = size_.scales > 0 ? group_.address(records[to].output_scales, to) : nullptr;
      store({group_.address(records[to].output, to) + slot * size_.row, scales + slot * size_.scales}, row);
    }
  }
}

RowsOut::Span RowsOut::tokens_in(Rank rank, std::int64_t round) const {
  const std::int64_t tokens = routing_.tokens_of(rank);
  return {std::min(tokens, round * chunk_), std::min(tokens, (round + 1) * chunk_)};
}

bool RowsOut::has_choice_in(Rank rank, std::int64_t token, int domain) const {
  const std::int64_t first = routing_.choice(rank, token, 0);
  for (std::int64_t c = first; c < first + routing_.shape.top_k; ++c)
    if (routing_.place[c] >= 0 && group_.domains_.of(handle_.holder(c)) == domain) return true;
  return false;
}

std::int64_t RowsOut::rows_to(Rank rank, std::int64_t round, int domain) const {
  const Span tokens = tokens_in(rank, round);
  std::int64_t rows = 0;
  for (std::int64_t token = tokens.first; token < tokens.last; ++token)
    rows += has_choice_in(rank, token, domain) ? 1 : 0;
  return rows;
}

Status RowsOut::begin_round(std::int64_t round) {
  if (!is_read_in_place(me_)) stage(round);
  return group_.domains_.count() > 1 ? exchange_guest_rows(round) : Status();
}

void RowsOut::stage(std::int64_t round) {
  const Span tokens = tokens_in(me_, round);
  std::byte* to = group_.staging(me_, round).data();
  for (std::int64_t token = tokens.first; token < tokens.last; ++token, to += size_.both()) {
    const auto t = static_cast<std::size_t>(token);
    std::memcpy(to, tokens_.rows + t * size_.row, size_.row);
    if (size_.scales > 0) std::memcpy(to + size_.row, tokens_.scales + t * size_.scales, size_.scales);
  }
}

Status RowsOut::exchange_guest_rows(std::int64_t round) {
  const Domains& domains = group_.domains_;
  const Span tokens = tokens_in(me_, round);
  std::size_t sent = 0;
  for (Rank to = 0; to < group_.size(); ++to) {
    group_.counts_[to] = 0;
    if (domains.shared(me_, to) || domains.proxy(me_, domains.of(to)) != to) continue;
    for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
      if (!has_choice_in(me_, token, domains.of(to))) continue;
      const auto t = static_cast<std::size_t>(token);
      std::byte* const row = group_.outgoing(sent + size_.both()) + sent;
      std::memcpy(row, tokens_.rows + t * size_.row, size_.row);
      if (size_.scales > 0) std::memcpy(row + size_.row, tokens_.scales + t * size_.scales, size_.scales);
      group_.counts_[to] += size_.both();
      sent += size_.both();
    }
  }
  std::size_t received = 0;
  std::fill(group_.back_counts_.begin(), group_.back_counts_.end(), 0);
  for (const Rank guest : group_.guests_of_[me_]) {
    group_.back_counts_[guest] = static_cast<std::size_t>(rows_to(guest, round, domains.of(me_))) * size_.both();
    received += group_.back_counts_[guest];
  }
  std::byte* const behind = group_.staging(me_, round).data() + static_cast<std::size_t>(chunk_) * size_.both();
  return group_.communicator_.all_to_all_v({group_.outgoing(0), sent, DType::kUInt8}, group_.counts_,
                                           {behind, received, DType::kUInt8, {}}, group_.back_counts_);
}

template <typename RowOf>
void RowsOut::pull_from(Rank from, std::int64_t round, bool of_guest, RowOf row_of) {
  const Span tokens = tokens_in(from, round);
  std::size_t guest_rows = 0;
  for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
    if (of_guest && !has_choice_in(from, token, group_.domains_.of(me_))) continue;
    const ConstRowsAt row = row_of(of_guest ? guest_rows++ : static_cast<std::size_t>(token - tokens.first));
    const std::int64_t first = routing_.choice(from, token, 0);
    for (std::int64_t c = first; c < first + routing_.shape.top_k; ++c)
      if (routing_.place[c] >= 0 && handle_.holder(c) == me_) store_slot(routing_.slot[c], row);
  }
}

void RowsOut::pull(std::int64_t round) {
  std::int64_t rows = 0;
  for (Rank from = 0; from < group_.size(); ++from)
    if (from != me_) rows += handle_.traffic_from_to(from, me_);
  group_.pull_stores_.run(static_cast<std::size_t>(rows / rounds_) * size_.row, [&](kernels::Store how) {
    how_ = how;
    pull_rows(round);
  });
}

void RowsOut::pull_rows(std::int64_t round) {
  const Domains& domains = group_.domains_;
  const std::vector<Rank>& ranks = domains.ranks(domains.of(me_));
  const auto mine = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), me_) - ranks.begin());
  const auto packed = [this](const std::byte* base) {
    return [this, base](std::size_t i) {
      const std::byte* const row = base + i * size_.both();
      return ConstRowsAt{row, row + size_.row};
    };
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Rank from = ranks[(mine + i) % ranks.size()];  // so that ranks do not all read from the same rank at once
    const std::byte* const staged = group_.staging(from, round).data();
    if (from != me_ && !is_written_in_place(me_)) {
      if (is_read_in_place(from)) {
        const CallRecord& record = group_.rendezvous_.records()[from];
        const auto first = static_cast<std::size_t>(tokens_in(from, round).first);
        const std::byte* const rows = group_.address(record.input, from) + first * size_.row;
        const std::byte* const scales =
            size_.scales > 0 ? group_.address(record.input_scales, from) + first * size_.scales : nullptr;
        pull_from(from, round, false, [&](std::size_t t) {
          return ConstRowsAt{rows + t * size_.row, scales + t * size_.scales};
        });
      } else {
        pull_from(from, round, false, packed(staged));
      }
    }
    if (domains.count() == 1) continue;
    const std::byte* guests = staged + static_cast<std::size_t>(chunk_) * size_.both();
    for (const Rank guest : group_.guests_of_[from]) {
      pull_from(guest, round, true, packed(guests));
      guests += static_cast<std::size_t>(rows_to(guest, round, domains.of(me_))) * size_.both();
    }
  }
}

}  // namespace accord::expert
