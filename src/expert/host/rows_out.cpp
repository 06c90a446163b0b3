// Within a domain a row is copied once. Its rank writes it to slots that are in windows; otherwise the rank of the
// slots reads it, from a window or from the staging memory of the row's rank. Tokens are copied to staging memory in
// rounds: the next round is copied while the current one is read. A row that other domains need is sent once to each
// of them, to the proxy there, which stores it behind its own tokens in staging memory, where its domain reads it.
#include "expert/host/rows_out.hpp"

#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"

namespace accord::expert {

RowsOut::RowsOut(HostState& state, const Handle& handle, const OutCall& call)
    : state_(state),
      scratch_(state.scratch),
      handle_(handle),
      routing_(handle.routing),
      me_(state.rank()),
      size_(call.size),
      tokens_(call.tokens),
      slots_(call.slots) {
  stages_ = state_.shared.domains().count() > 1;
  for (Rank from = 0; from < state_.size(); ++from)
    for (Rank to = 0; to < state_.size(); ++to)
      stages_ |= from != to && routing_.tokens_of(from) > 0 && routing_.ranks[to].recv_rows > 0 &&
                 !is_written_in_place(to) && !is_read_in_place(from);
  const std::size_t rows_in_staging = state_.shared.staging(me_, 0).size() / size_.with_scales();
  const auto chunk = static_cast<std::int64_t>(rows_in_staging / (1 + state_.shared.max_guests()));
  rounds_ = stages_ ? Rounds(routing_, chunk) : Rounds::of_all_tokens(routing_);
}

bool RowsOut::is_read_in_place(Rank from) const {
  const CallRecord& record = state_.rendezvous.records()[from];
  return record.input != exec::kNoPlace && (size_.scales == 0 || record.input_scales != exec::kNoPlace);
}
bool RowsOut::is_written_in_place(Rank to) const {
  const CallRecord& record = state_.rendezvous.records()[to];
  return record.output != exec::kNoPlace && (size_.scales == 0 || record.output_scales != exec::kNoPlace);
}

Status RowsOut::run() {
  clear_padding();
  push();
  if (rounds_.count() > 0 && stages_) ACCORD_RETURN_IF_ERROR(begin_round(0));
  for (std::int64_t round = 0; round < rounds_.count(); ++round) {
    if (stages_) {
      ACCORD_RETURN_IF_ERROR(state_.communicator.barrier());
      if (round + 1 < rounds_.count()) ACCORD_RETURN_IF_ERROR(begin_round(round + 1));
    }
    pull(round);
  }
  return {};
}

void RowsOut::clear_padding() {
  for (int place = handle_.first_place(); place < handle_.last_place(); ++place) {
    const auto first = to_size(routing_.offsets[place] + routing_.rows[place]);
    const auto rows = to_size(routing_.counts[place] - routing_.rows[place]);
    if (rows == 0) continue;
    std::memset(slots_.rows + first * size_.row, 0, rows * size_.row);
    if (size_.scales > 0) std::memset(slots_.scales + first * size_.scales, 0, rows * size_.scales);
  }
}

void RowsOut::store(const Rows& to, const ConstRows& row) const {
  kernels::copy(to.rows, row.rows, size_.row, how_);
  if (size_.scales > 0) std::memcpy(to.scales, row.scales, size_.scales);
}

void RowsOut::store_slot(std::int64_t slot, const ConstRows& row) {
  const auto at = to_size(slot);
  store({slots_.rows + at * size_.row, slots_.scales + at * size_.scales}, row);
}

// Whether copies bypass the cache is learned from their measured cost, for calls of each size.
void RowsOut::push() {
  std::int64_t rows = 0;
  for (Rank to = 0; to < state_.size(); ++to)
    if (is_mine_to_write(to)) rows += handle_.traffic_from_to(me_, to);
  state_.push_stores.run(to_size(rows) * size_.row, [&](kernels::Store how) {
    how_ = how;
    push_rows();
  });
}

bool RowsOut::is_mine_to_write(Rank to) const {
  return to == me_ || (state_.shared.domains().shared(to, me_) && is_written_in_place(to));
}

void RowsOut::push_rows() {
  const std::span<const CallRecord> records = state_.rendezvous.records();
  const std::int64_t tokens = handle_.tokens();
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto t = to_size(token);
    const ConstRows row{tokens_.rows + t * size_.row, tokens_.scales + t * size_.scales};
    const std::int64_t first = routing_.choice(me_, token, 0);
    for (std::int64_t c = first; c < first + routing_.shape.top_k; ++c) {
      if (routing_.place[c] < 0) continue;
      const Rank to = handle_.holder(c);
      if (!is_mine_to_write(to)) continue;
      if (to == me_) {
        store_slot(routing_.slot[c], row);
        continue;
      }
      const auto slot = to_size(routing_.slot[c]);
      std::byte* const scales = size_.scales > 0 ? state_.shared.address(records[to].output_scales, to) : nullptr;
      store({state_.shared.address(records[to].output, to) + slot * size_.row, scales + slot * size_.scales}, row);
    }
  }
}

bool RowsOut::has_choice_in(Rank rank, std::int64_t token, int domain) const {
  const std::int64_t first = routing_.choice(rank, token, 0);
  for (std::int64_t c = first; c < first + routing_.shape.top_k; ++c)
    if (routing_.place[c] >= 0 && state_.shared.domains().of(handle_.holder(c)) == domain) return true;
  return false;
}

std::int64_t RowsOut::rows_to(Rank rank, std::int64_t round, int domain) const {
  const TokenRange tokens = rounds_.tokens(rank, round);
  std::int64_t rows = 0;
  for (std::int64_t token = tokens.first; token < tokens.last; ++token)
    rows += has_choice_in(rank, token, domain) ? 1 : 0;
  return rows;
}

Status RowsOut::begin_round(std::int64_t round) {
  if (!is_read_in_place(me_)) stage(round);
  return state_.shared.domains().count() > 1 ? exchange_guest_rows(round) : Status();
}

void RowsOut::stage(std::int64_t round) {
  const TokenRange tokens = rounds_.tokens(me_, round);
  std::byte* to = state_.shared.staging(me_, round).data();
  for (std::int64_t token = tokens.first; token < tokens.last; ++token, to += size_.with_scales()) {
    const auto t = to_size(token);
    std::memcpy(to, tokens_.rows + t * size_.row, size_.row);
    if (size_.scales > 0) std::memcpy(to + size_.row, tokens_.scales + t * size_.scales, size_.scales);
  }
}

Status RowsOut::exchange_guest_rows(std::int64_t round) {
  const Domains& domains = state_.shared.domains();
  const TokenRange tokens = rounds_.tokens(me_, round);
  std::size_t sent = 0;
  for (Rank to = 0; to < state_.size(); ++to) {
    scratch_.counts[to] = 0;
    if (domains.shared(me_, to) || domains.proxy(me_, domains.of(to)) != to) continue;
    for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
      if (!has_choice_in(me_, token, domains.of(to))) continue;
      const auto t = to_size(token);
      std::byte* const row = grown(scratch_.outgoing, sent + size_.with_scales()) + sent;
      std::memcpy(row, tokens_.rows + t * size_.row, size_.row);
      if (size_.scales > 0) std::memcpy(row + size_.row, tokens_.scales + t * size_.scales, size_.scales);
      scratch_.counts[to] += size_.with_scales();
      sent += size_.with_scales();
    }
  }
  std::size_t received = 0;
  std::fill(scratch_.back_counts.begin(), scratch_.back_counts.end(), 0);
  for (const Rank guest : state_.shared.guests(me_)) {
    scratch_.back_counts[guest] = to_size(rows_to(guest, round, domains.of(me_))) * size_.with_scales();
    received += scratch_.back_counts[guest];
  }
  std::byte* const behind = state_.shared.staging(me_, round).data() + rounds_.chunk() * size_.with_scales();
  return state_.communicator.all_to_all_v({grown(scratch_.outgoing, 0), sent, DType::kUInt8}, scratch_.counts,
                                          {behind, received, DType::kUInt8, {}}, scratch_.back_counts);
}

template <typename RowOf>
void RowsOut::pull_from(Rank from, std::int64_t round, Sender sender, RowOf row_of) {
  const TokenRange tokens = rounds_.tokens(from, round);
  std::size_t guest_rows = 0;
  for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
    if (sender == Sender::kGuest && !has_choice_in(from, token, state_.shared.domains().of(me_))) continue;
    const ConstRows row = row_of(sender == Sender::kGuest ? guest_rows++ : to_size(token - tokens.first));
    const std::int64_t first = routing_.choice(from, token, 0);
    for (std::int64_t c = first; c < first + routing_.shape.top_k; ++c)
      if (routing_.place[c] >= 0 && handle_.holder(c) == me_) store_slot(routing_.slot[c], row);
  }
}

void RowsOut::pull(std::int64_t round) {
  std::int64_t rows = 0;
  for (Rank from = 0; from < state_.size(); ++from)
    if (from != me_) rows += handle_.traffic_from_to(from, me_);
  state_.pull_stores.run(to_size(rows / rounds_.count()) * size_.row, [&](kernels::Store how) {
    how_ = how;
    pull_rows(round);
  });
}

void RowsOut::pull_rows(std::int64_t round) {
  const Domains& domains = state_.shared.domains();
  const std::vector<Rank>& ranks = domains.ranks(domains.of(me_));
  const auto mine = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), me_) - ranks.begin());
  const auto packed = [this](const std::byte* base) {
    return [this, base](std::size_t i) {
      const std::byte* const row = base + i * size_.with_scales();
      return ConstRows{row, row + size_.row};
    };
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Rank from = ranks[(mine + i) % ranks.size()];  // so that ranks do not all read from the same rank at once
    const std::byte* const staged = state_.shared.staging(from, round).data();
    if (from != me_ && !is_written_in_place(me_)) {
      if (is_read_in_place(from)) {
        const CallRecord& record = state_.rendezvous.records()[from];
        const auto first = to_size(rounds_.tokens(from, round).first);
        const std::byte* const rows = state_.shared.address(record.input, from) + first * size_.row;
        const std::byte* const scales =
            size_.scales > 0 ? state_.shared.address(record.input_scales, from) + first * size_.scales : nullptr;
        pull_from(from, round, Sender::kNeighbor, [&](std::size_t t) {
          return ConstRows{rows + t * size_.row, scales + t * size_.scales};
        });
      } else {
        pull_from(from, round, Sender::kNeighbor, packed(staged));
      }
    }
    if (domains.count() == 1) continue;
    const std::byte* guests = staged + rounds_.chunk() * size_.with_scales();
    for (const Rank guest : state_.shared.guests(from)) {
      pull_from(guest, round, Sender::kGuest, packed(guests));
      guests += to_size(rows_to(guest, round, domains.of(me_))) * size_.with_scales();
    }
  }
}

}  // namespace accord::expert
