// The rank of a token adds up what it reads from its domain: rows in place if they are in windows, otherwise pieces
// that the other ranks put into their staging memory in rounds. A piece is a row, or the sum of all rows below a node
// of the tree. A domain's proxy for ranks elsewhere does the same for their tokens, and sends them one piece for each
// node whose rows are all in the domain.
#include "expert/rows_back.hpp"

#include <algorithm>
#include <cstring>

#include "base/rounding.hpp"

namespace accord::expert {
namespace {

/// Pieces begin at cache lines, their scales at words.
constexpr std::size_t kLine = 64, kWord = 8;

std::size_t scales_offset(RowSize size) { return round_up(size.row, kWord); }

/// Maximum bytes of the pieces of one token on one rank.
std::size_t max_bytes(std::size_t leaf, std::size_t partial, int max_nodes, int top_k) {
  if (max_nodes == 1) return std::max(leaf, partial);
  const auto k = static_cast<std::size_t>(top_k);
  return std::max(k * leaf, k / 2 * partial + k % 2 * leaf);
}

}  // namespace

std::size_t min_back_staging(const ExpertGroupConfig& config, int max_nodes) {
  const RowSize size{row_bytes(config.hidden, config.dtype), sizeof(float) * scales_of_row(config.hidden)};
  const std::size_t leaf = round_up(scales_offset(size) + size.scales, kLine);
  const std::size_t partial = round_up(row_bytes(config.hidden, kernels::tree_accumulator(config.dtype)), kLine);
  return max_bytes(leaf, partial, max_nodes, config.top_k);
}

RowsBack::RowsBack(Group& group, const Handle& handle, const BackCall& call)
    : group_(group),
      handle_(handle),
      routing_(handle.routing),
      me_(group.rank()),
      call_(call),
      accumulator_(kernels::tree_accumulator(call.dtype)),
      leaf_bytes_(round_up(scales_offset(call.size) + call.size.scales, kLine)),
      partial_bytes_(round_up(row_bytes(call.hidden, accumulator_), kLine)) {
  stages_ = group_.domains_.count() > 1;
  std::int64_t max_tokens = 0;
  for (Rank rank = 0; rank < group_.size(); ++rank) {
    max_tokens = std::max(max_tokens, routing_.tokens_of(rank));
    for (Rank reader = 0; reader < group_.size(); ++reader)
      stages_ |=
          routing_.ranks[rank].recv_rows > 0 && routing_.tokens_of(reader) > 0 && !is_read_in_place(rank, reader);
  }
  // Each half of the staging memory has one part for the tokens of each rank.
  const std::size_t of_token = max_bytes(leaf_bytes_, partial_bytes_, group_.max_nodes_, routing_.shape.top_k);
  const std::size_t part = group_.staging(me_, 0).size() / static_cast<std::size_t>(group_.size());
  chunk_ = stages_ ? static_cast<std::int64_t>(part / of_token) : std::max<std::int64_t>(max_tokens, 1);
  rounds_ = quotient_up(max_tokens, chunk_);
}

bool RowsBack::is_read_in_place(Rank from, Rank reader) const {
  const CallRecord& record = group_.rendezvous_.records()[from];
  return from == reader ||
         (record.input != exec::kNoPlace && (call_.size.scales == 0 || record.input_scales != exec::kNoPlace));
}

Status RowsBack::run() {
  if (rounds_ > 0 && stages_) stage(0);
  for (std::int64_t round = 0; round < rounds_; ++round) {
    if (stages_) {
      ACCORD_RETURN_IF_ERROR(group_.communicator_.barrier());
      if (round + 1 < rounds_) stage(round + 1);
    }
    if (group_.domains_.count() > 1) ACCORD_RETURN_IF_ERROR(exchange_sums(round));
    add_up(round);
  }
  return {};
}

RowsBack::Span RowsBack::tokens_in(Rank rank, std::int64_t round) const {
  const std::int64_t tokens = routing_.tokens_of(rank);
  return {std::min(tokens, round * chunk_), std::min(tokens, (round + 1) * chunk_)};
}

std::span<const Leaf> RowsBack::leaves(Rank rank, std::int64_t token) {
  const int count = leaves_of(routing_, rank, token, group_.leaves_);
  return std::span(group_.leaves_).first(static_cast<std::size_t>(count));
}

void RowsBack::stage(std::int64_t round) {
  const Domains& domains = group_.domains_;
  const std::span<std::byte> memory = group_.staging(me_, round);
  const std::size_t part = memory.size() / static_cast<std::size_t>(group_.size());
  for (Rank rank = 0; rank < group_.size(); ++rank) {
    if (is_read_in_place(me_, domains.proxy(rank, domains.of(me_)))) continue;
    std::byte* to = memory.data() + static_cast<std::size_t>(rank) * part;
    const Span tokens = tokens_in(rank, round);
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
  const kernels::TreeRow& row = group_.operands_[0];
  std::memcpy(to, row.data, call_.size.row);
  if (row.scales != nullptr) std::memcpy(to + scales_offset(call_.size), row.scales, call_.size.scales);
}

void RowsBack::begin_pieces(Rank of_tokens, std::int64_t round) {
  for (const Rank rank : group_.domains_.ranks(group_.domains_.of(me_))) {
    const std::span<std::byte> memory = group_.staging(rank, round);
    group_.pieces_[rank] =
        memory.data() + static_cast<std::size_t>(of_tokens) * (memory.size() / static_cast<std::size_t>(group_.size()));
  }
}

Status RowsBack::exchange_sums(std::int64_t round) {
  const Domains& domains = group_.domains_;
  const auto by_domain = [&](const Leaf& leaf) { return domain(leaf); };
  std::size_t sent = 0;
  std::fill(group_.counts_.begin(), group_.counts_.end(), 0);
  for (const Rank guest : group_.guests_of_[me_]) {
    const std::size_t before = sent;
    begin_pieces(guest, round);
    const Span tokens = tokens_in(guest, round);
    for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
      const std::span<const Leaf> of_token = leaves(guest, token);
      for_each_node(of_token, {0, static_cast<int>(of_token.size())}, by_domain, [&](Node node) {
        if (domain(of_token[node.first]) != domains.of(me_)) return;
        begin();
        add_node(guest, of_token, node);
        write_piece(node, group_.outgoing(sent + piece_bytes(node)) + sent);
        sent += piece_bytes(node);
      });
    }
    group_.counts_[guest] = sent - before;
  }
  // Bytes that come back for this rank's tokens from the proxies elsewhere.
  std::fill(group_.back_counts_.begin(), group_.back_counts_.end(), 0);
  const Span tokens = tokens_in(me_, round);
  for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
    const std::span<const Leaf> of_token = leaves(me_, token);
    for_each_node(of_token, {0, static_cast<int>(of_token.size())}, by_domain, [&](Node node) {
      const int there = domain(of_token[node.first]);
      if (there != domains.of(me_)) group_.back_counts_[domains.proxy(me_, there)] += piece_bytes(node);
    });
  }
  std::size_t received = 0;
  for (const std::size_t bytes : group_.back_counts_) received += bytes;
  std::byte* const incoming = group_.incoming(received);
  ACCORD_RETURN_IF_ERROR(group_.communicator_.all_to_all_v({group_.outgoing(0), sent, DType::kUInt8}, group_.counts_,
                                                           {incoming, received, DType::kUInt8, {}},
                                                           group_.back_counts_));
  std::size_t offset = 0;
  for (Rank rank = 0; rank < group_.size(); ++rank) {
    if (!domains.shared(rank, me_)) group_.pieces_[rank] = incoming + offset;
    offset += group_.back_counts_[rank];
  }
  return {};
}

void RowsBack::add_up(std::int64_t round) {
  const Domains& domains = group_.domains_;
  begin_pieces(me_, round);
  const std::size_t result_bytes = row_bytes(call_.hidden, call_.result_dtype);
  const Span tokens = tokens_in(me_, round);
  for (std::int64_t token = tokens.first; token < tokens.last; ++token) {
    const std::span<const Leaf> of_token = leaves(me_, token);
    begin();
    for_each_node(
        of_token, {0, static_cast<int>(of_token.size())}, [&](const Leaf& leaf) { return domain(leaf); },
        [&](Node node) {
          const int there = domain(of_token[node.first]);
          if (there == domains.of(me_)) return add_node(me_, of_token, node);
          const std::byte*& piece = group_.pieces_[domains.proxy(me_, there)];
          add_piece(of_token[node.first], node, piece);
          piece += piece_bytes(node);
        });
    finish(call_.result + static_cast<std::size_t>(token) * result_bytes, call_.result_dtype);
  }
}

void RowsBack::add_node(Rank rank, std::span<const Leaf> of_token, Node whole) {
  for_each_node(
      of_token, whole, [&](const Leaf& leaf) { return holder(leaf); },
      [&](Node node) {
        const Rank from = holder(of_token[node.first]);
        if (is_read_in_place(from, group_.domains_.proxy(rank, group_.domains_.of(me_)))) {
          for (int i = node.first; i < node.last; ++i) add_leaf(of_token[i]);
          return;
        }
        const std::byte*& piece = group_.pieces_[from];
        add_piece(of_token[node.first], node, piece);
        piece += piece_bytes(node);
      });
}

void RowsBack::add_leaf(const Leaf& leaf) {
  const Rank from = holder(leaf);
  const CallRecord& record = group_.rendezvous_.records()[from];
  const auto slot = static_cast<std::size_t>(leaf.slot);
  const std::byte* const rows = from == me_ ? call_.slots.rows : group_.address(record.input, from);
  kernels::TreeRow& row = group_.operands_[static_cast<std::size_t>(operands_)];
  row = {.data = rows + slot * call_.size.row};
  if (call_.weighted) row.weight = group_.gathered_weights_[static_cast<std::size_t>(leaf.choice)];
  if (call_.size.scales > 0) {
    const std::byte* const scales = from == me_ ? call_.slots.scales : group_.address(record.input_scales, from);
    row.scales = reinterpret_cast<const float*>(scales + slot * call_.size.scales);
  }
  group_.keys_[static_cast<std::size_t>(operands_++)] = leaf.expert;
}

void RowsBack::add_piece(const Leaf& first, Node node, const std::byte* piece) {
  kernels::TreeRow& row = group_.operands_[static_cast<std::size_t>(operands_)];
  row = {.data = piece, .is_partial = node.last - node.first > 1};
  if (!row.is_partial) {
    if (call_.weighted) row.weight = group_.gathered_weights_[static_cast<std::size_t>(first.choice)];
    if (call_.size.scales > 0) row.scales = reinterpret_cast<const float*>(piece + scales_offset(call_.size));
  }
  group_.keys_[static_cast<std::size_t>(operands_++)] = first.expert;
}

void RowsBack::finish(std::byte* to, DType dtype) {
  for (int i = 0; i < operands_; ++i)
    group_.operands_[i].merges =
        group_.merge_order_.merges_after(group_.keys_[i], i + 1 < operands_ ? group_.keys_[i + 1] : -1);
  kernels::sum_rows({.rows = std::span(group_.operands_).first(static_cast<std::size_t>(operands_)),
                     .dtype = call_.dtype,
                     .weighted = call_.weighted,
                     .y = to,
                     .y_dtype = dtype,
                     .width = static_cast<std::size_t>(call_.hidden)});
}

}  // namespace accord::expert
