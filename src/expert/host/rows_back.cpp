// The rank of a token adds up what it reads from its domain: rows in place if they are in windows, otherwise pieces
// that the other ranks put into their staging memory in rounds. A piece is a row, or the sum of all rows below a node
// of the tree. A domain's proxy for ranks elsewhere does the same for their tokens, and sends them one piece for each
// node whose rows are all in the domain.
#include "expert/host/rows_back.hpp"

#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"
#include "expert/config.hpp"

namespace accord::expert {
namespace {

/// Pieces begin at cache lines, their scales at words.
constexpr std::size_t kLine = 64, kWord = 8;

std::size_t scales_offset(const RowBytes& size) { return round_up(size.row, kWord); }

/// Maximum bytes of the pieces of one token on one rank.
std::size_t max_bytes(std::size_t leaf, std::size_t partial, int max_nodes, int top_k) {
  if (max_nodes == 1) return std::max(leaf, partial);
  const auto k = to_size(top_k);
  return std::max(k * leaf, k / 2 * partial + k % 2 * leaf);
}

}  // namespace

std::size_t min_back_staging(const ExpertGroupConfig& config, int max_nodes) {
  const RowBytes size{row_bytes(config.hidden, config.dtype), scale_bytes(config.hidden)};
  const std::size_t leaf = round_up(scales_offset(size) + size.scales, kLine);
  const std::size_t partial = round_up(row_bytes(config.hidden, kernels::tree_accumulator(config.dtype)), kLine);
  return max_bytes(leaf, partial, max_nodes, config.top_k);
}

RowsBack::RowsBack(HostState& state, const Handle& handle, const BackCall& call)
    : state_(state),
      scratch_(state.scratch),
      handle_(handle),
      routing_(handle.routing),
      me_(state.rank()),
      call_(call),
      accumulator_(kernels::tree_accumulator(call.dtype)),
      leaf_bytes_(round_up(scales_offset(call.size) + call.size.scales, kLine)),
      partial_bytes_(round_up(row_bytes(call.hidden, accumulator_), kLine)) {
  stages_ = state_.shared.domains().count() > 1;
  for (Rank rank = 0; rank < state_.size(); ++rank)
    for (Rank reader = 0; reader < state_.size(); ++reader)
      stages_ |=
          routing_.ranks[rank].recv_rows > 0 && routing_.tokens_of(reader) > 0 && !is_read_in_place(rank, reader);
  // Each half of the staging memory has one part for the tokens of each rank.
  const std::size_t of_token = max_bytes(leaf_bytes_, partial_bytes_, state_.max_nodes, routing_.shape.top_k);
  const std::size_t part = state_.shared.staging(me_, 0).size() / to_size(state_.size());
  const auto chunk = static_cast<std::int64_t>(part / of_token);
  rounds_ = stages_ ? Rounds(routing_, chunk) : Rounds::of_all_tokens(routing_);
}

bool RowsBack::is_read_in_place(Rank from, Rank reader) const {
  const CallRecord& record = state_.rendezvous.records()[from];
  return from == reader ||
         (record.input != exec::kNoPlace && (call_.size.scales == 0 || record.input_scales != exec::kNoPlace));
}

Status RowsBack::run() {
  if (rounds_.count() > 0 && stages_) stage(0);
  for (std::int64_t round = 0; round < rounds_.count(); ++round) {
    if (stages_) {
      ACCORD_RETURN_IF_ERROR(state_.communicator.barrier());
      if (round + 1 < rounds_.count()) stage(round + 1);
    }
    if (state_.shared.domains().count() > 1) ACCORD_RETURN_IF_ERROR(exchange_sums(round));
    add_up(round);
  }
  return {};
}

std::span<const Leaf> RowsBack::leaves(Rank rank, std::int64_t token) {
  const int count = leaves_of(routing_, rank, token, scratch_.leaves);
  return std::span(scratch_.leaves).first(to_size(count));
}

void RowsBack::stage(std::int64_t round) {
  const Domains& domains = state_.shared.domains();
  const std::span<std::byte> memory = state_.shared.staging(me_, round);
  const std::size_t part = memory.size() / to_size(state_.size());
  for (Rank rank = 0; rank < state_.size(); ++rank) {
    if (is_read_in_place(me_, domains.proxy(rank, domains.of(me_)))) continue;
    std::byte* to = memory.data() + to_size(rank) * part;
    const TokenRange tokens = rounds_.tokens(rank, round);
    for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
      const std::span<const Leaf> of_token = leaves(rank, token);
      for_each_node(
          of_token, {0, static_cast<int>(of_token.size())}, [&](const Leaf& it) { return holder(it); },
          [&](Node node) {
            if (holder(of_token[node.first]) != me_) return;
            begin();
            for (int i = node.first; i < node.last; ++i) add_leaf(of_token[i]);
            write_piece(node, to);
            to += piece_bytes(node);
          });
    }
  }
}

void RowsBack::write_piece(Node node, std::byte* to) {
  if (node.last - node.first > 1) return finish(to, accumulator_);
  const kernels::TreeRow& row = scratch_.operands[0];
  std::memcpy(to, row.data, call_.size.row);
  if (row.scales != nullptr) std::memcpy(to + scales_offset(call_.size), row.scales, call_.size.scales);
}

void RowsBack::begin_pieces(Rank of_tokens, std::int64_t round) {
  for (const Rank rank : state_.shared.domains().ranks(state_.shared.domains().of(me_))) {
    const std::span<std::byte> memory = state_.shared.staging(rank, round);
    scratch_.pieces[rank] = memory.data() + to_size(of_tokens) * (memory.size() / to_size(state_.size()));
  }
}

Status RowsBack::exchange_sums(std::int64_t round) {
  const Domains& domains = state_.shared.domains();
  const auto by_domain = [&](const Leaf& leaf) { return domain(leaf); };
  std::size_t sent = 0;
  std::fill(scratch_.counts.begin(), scratch_.counts.end(), 0);
  for (const Rank guest : state_.shared.guests(me_)) {
    const std::size_t before = sent;
    begin_pieces(guest, round);
    const TokenRange tokens = rounds_.tokens(guest, round);
    for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
      const std::span<const Leaf> of_token = leaves(guest, token);
      for_each_node(of_token, {0, static_cast<int>(of_token.size())}, by_domain, [&](Node node) {
        if (domain(of_token[node.first]) != domains.of(me_)) return;
        begin();
        add_node(guest, of_token, node);
        write_piece(node, grown(scratch_.outgoing, sent + piece_bytes(node)) + sent);
        sent += piece_bytes(node);
      });
    }
    scratch_.counts[guest] = sent - before;
  }
  // Bytes that come back for this rank's tokens from the proxies elsewhere.
  std::fill(scratch_.back_counts.begin(), scratch_.back_counts.end(), 0);
  const TokenRange tokens = rounds_.tokens(me_, round);
  for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
    const std::span<const Leaf> of_token = leaves(me_, token);
    for_each_node(of_token, {0, static_cast<int>(of_token.size())}, by_domain, [&](Node node) {
      const int there = domain(of_token[node.first]);
      if (there != domains.of(me_)) scratch_.back_counts[domains.proxy(me_, there)] += piece_bytes(node);
    });
  }
  std::size_t received = 0;
  for (const std::size_t bytes : scratch_.back_counts) received += bytes;
  std::byte* const incoming = grown(scratch_.incoming, received);
  ACCORD_RETURN_IF_ERROR(state_.communicator.all_to_all_v({grown(scratch_.outgoing, 0), sent, DType::kUInt8},
                                                          scratch_.counts, {incoming, received, DType::kUInt8, {}},
                                                          scratch_.back_counts));
  std::size_t offset = 0;
  for (Rank rank = 0; rank < state_.size(); ++rank) {
    if (!domains.shared(rank, me_)) scratch_.pieces[rank] = incoming + offset;
    offset += scratch_.back_counts[rank];
  }
  return {};
}

void RowsBack::add_up(std::int64_t round) {
  const Domains& domains = state_.shared.domains();
  begin_pieces(me_, round);
  const std::size_t result_bytes = row_bytes(call_.hidden, call_.result_dtype);
  const TokenRange tokens = rounds_.tokens(me_, round);
  for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
    const std::span<const Leaf> of_token = leaves(me_, token);
    begin();
    for_each_node(
        of_token, {0, static_cast<int>(of_token.size())}, [&](const Leaf& leaf) { return domain(leaf); },
        [&](Node node) {
          const int there = domain(of_token[node.first]);
          if (there == domains.of(me_)) return add_node(me_, of_token, node);
          const std::byte*& piece = scratch_.pieces[domains.proxy(me_, there)];
          add_piece(of_token[node.first], node, piece);
          piece += piece_bytes(node);
        });
    finish(call_.result + to_size(token) * result_bytes, call_.result_dtype);
  }
}

void RowsBack::add_node(Rank rank, std::span<const Leaf> of_token, Node whole) {
  for_each_node(
      of_token, whole, [&](const Leaf& leaf) { return holder(leaf); },
      [&](Node node) {
        const Rank from = holder(of_token[node.first]);
        if (is_read_in_place(from, state_.shared.domains().proxy(rank, state_.shared.domains().of(me_)))) {
          for (int i = node.first; i < node.last; ++i) add_leaf(of_token[i]);
          return;
        }
        const std::byte*& piece = scratch_.pieces[from];
        add_piece(of_token[node.first], node, piece);
        piece += piece_bytes(node);
      });
}

void RowsBack::add_leaf(const Leaf& leaf) {
  const Rank from = holder(leaf);
  const CallRecord& record = state_.rendezvous.records()[from];
  const auto slot = to_size(leaf.slot);
  const std::byte* const rows = from == me_ ? call_.slots.rows : state_.shared.address(record.input, from);
  kernels::TreeRow& row = scratch_.operands[to_size(operands_)];
  row = {.data = rows + slot * call_.size.row};
  if (call_.weighted) row.weight = state_.weights.values()[to_size(leaf.choice)];
  if (call_.size.scales > 0) {
    const std::byte* const scales = from == me_ ? call_.slots.scales : state_.shared.address(record.input_scales, from);
    row.scales = reinterpret_cast<const float*>(scales + slot * call_.size.scales);
  }
  scratch_.keys[to_size(operands_++)] = leaf.expert;
}

void RowsBack::add_piece(const Leaf& first, Node node, const std::byte* piece) {
  kernels::TreeRow& row = scratch_.operands[to_size(operands_)];
  row = {.data = piece, .is_partial = node.last - node.first > 1};
  if (!row.is_partial) {
    if (call_.weighted) row.weight = state_.weights.values()[to_size(first.choice)];
    if (call_.size.scales > 0) row.scales = reinterpret_cast<const float*>(piece + scales_offset(call_.size));
  }
  scratch_.keys[to_size(operands_++)] = first.expert;
}

void RowsBack::finish(std::byte* to, DType dtype) {
  for (int i = 0; i < operands_; ++i)
    scratch_.operands[i].merges =
        state_.merge_order.merges_after(scratch_.keys[i], i + 1 < operands_ ? scratch_.keys[i + 1] : -1);
  kernels::sum_rows({.rows = std::span(scratch_.operands).first(to_size(operands_)),
                     .dtype = call_.dtype,
                     .weighted = call_.weighted,
                     .y = to,
                     .y_dtype = dtype,
                     .width = to_size(call_.hidden)});
}

}  // namespace accord::expert
