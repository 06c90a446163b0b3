// The table is a list of rows, the defaults first; the last row that matches a call decides. Choosing examines every
// row, so callers keep the result for a request.

#include "plan/selector.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "base/text.hpp"
#include "plan/registry.hpp"

namespace accord::plan {
namespace {

// Packets save the signal after the data, which matters while a message is a few cache lines; longer messages are
// read faster without a word to check in each line. Two-shot moves 2/n of what one-shot does per peer and overtakes
// it from a few KiB, the earlier the more ranks there are. Copies want slots that stay in the cache (256 KiB), sums
// fewer rounds; from 64 KiB until the caches are full, a single copy by the kernel where it is allowed. Between hosts
// a step takes tens of microseconds, so medium-sized messages of few ranks use a single step (docs/decisions/hosts.md
// has the figures). From 17 ranks on, short messages to each rank of each host would keep processors and NICs busy for
// longer than a few more steps take (docs/decisions/simulation.md). On GPUs this table was not measured. Packets serve
// the sizes for which MSCCL++ uses them, in one shot and then in two, and NCCL the rest; the rules before a rule of
// NCCL apply where NCCL is missing. Sums of buffers in windows read them directly at the sizes for which vLLM and
// TensorRT-LLM do, in one shot as far as vLLM goes. A call in place takes the rule before that, as one shot would
// overwrite what others still read.
constexpr std::string_view kDefaultTable =
    "barrier:0-inf=direct;"
    "barrier[ranks=17-inf]:0-inf=dissemination;"
    "barrier[ranks=17-inf,hosts=2-inf]:0-inf=hierarchical;"
    "broadcast:0-256=packet,256-inf=direct@256k;"
    "broadcast[hosts=2-inf]:256-2k=packet,1m-inf=hierarchical;"
    "broadcast[ranks=17-inf,hosts=2-inf]:0-2k=direct,16k-inf=hierarchical;"
    "all_gather:0-256=packet,256-8m=direct@256k,8m-inf=direct,64k-4m=zero_copy;"
    "all_gather[hosts=2-inf]:256-2k=packet;"
    "all_gather[ranks=17-inf,hosts=2-inf]:0-1k=hierarchical;"
    "reduce_scatter:0-256=packet,256-inf=direct;"
    "reduce_scatter[hosts=2-inf]:256-2k=packet,2k-inf=hierarchical;"
    "reduce_scatter[ranks=17-inf,hosts=2-inf]:0-2k=hierarchical;"
    "all_reduce:0-128=packet,128-8k=one_shot,8k-inf=two_shot;"
    "all_reduce[ranks=1-2]:128-64k=one_shot,64k-192k=one_shot@32k;"
    "all_reduce[ranks=9-inf]:0-1k=packet,1k-inf=two_shot;"
    "all_reduce[hosts=2-inf]:0-2k=packet,2k-inf=two_shot,8k-inf=hierarchical;"
    "all_reduce[ranks=1-8,hosts=2-inf]:2k-8k=one_shot;"
    "all_reduce[ranks=1-4,hosts=2-inf]:2k-32k=one_shot;"
    "all_reduce[ranks=17-inf,hosts=2-inf]:0-8k=hierarchical;"
    "reduce:0-256=packet,256-32k=direct,32k-inf=two_shot;"
    "reduce[hosts=2-inf]:256-2k=packet,128k-inf=hierarchical;"
    "reduce[ranks=17-inf,hosts=2-inf]:0-128k=hierarchical;"
    "gather:0-256=packet,256-inf=direct;"
    "gather[hosts=2-inf]:256-2k=packet;"
    "scatter:0-256=packet,256-inf=direct;"
    "scatter[hosts=2-inf]:256-2k=packet;"
    "all_to_all:0-256=packet,256-inf=direct,64k-2m=zero_copy;"
    "all_to_all[hosts=2-inf]:256-2k=packet;"
    "all_to_all[ranks=17-inf,hosts=2-inf]:0-4k=hierarchical;"
    "send_recv:0-128=packet,128-inf=direct;"
    "send_recv[hosts=2-inf]:128-4k=packet;"
    "broadcast[registered=yes]:2k-inf=zero_copy;"
    "all_gather[registered=yes]:2k-inf=zero_copy;"
    "reduce_scatter[registered=yes]:2k-inf=zero_copy;"
    "all_reduce[registered=yes]:2k-inf=two_shot_zero_copy;"
    "reduce[registered=yes]:2k-inf=zero_copy;"
    "gather[registered=yes]:2k-inf=zero_copy;"
    "scatter[registered=yes]:2k-inf=zero_copy;"
    "all_to_all[registered=yes]:2k-inf=zero_copy;"
    "broadcast[memory=cuda]:0-inf=direct,0-inf=nccl,0-16k=packet;"
    "all_gather[memory=cuda]:0-inf=direct,0-inf=nccl,0-16k=packet;"
    "reduce_scatter[memory=cuda]:0-inf=direct,0-inf=nccl,0-16k=packet;"
    "all_reduce[memory=cuda]:0-inf=two_shot,0-inf=nccl,0-16k=packet;"
    "all_reduce[memory=cuda,ranks=1-8]:16k-64k=packet;"
    "all_reduce[memory=cuda,ranks=3-8]:64k-1m=two_shot_packet;"
    "all_reduce[memory=cuda,registered=yes,ranks=1-8]:16k-8m=two_shot_zero_copy,16k-256k=one_shot_zero_copy;"
    "all_reduce[memory=cuda,registered=yes,ranks=1-4]:256k-512k=one_shot_zero_copy;"
    "all_reduce[memory=cuda,registered=yes,ranks=1-2]:512k-8m=one_shot_zero_copy;"
    "reduce[memory=cuda]:0-inf=direct,0-inf=nccl,0-16k=packet;"
    "gather[memory=cuda]:0-inf=direct,0-inf=nccl,0-16k=packet;"
    "scatter[memory=cuda]:0-inf=direct,0-inf=nccl,0-16k=packet;"
    "all_to_all[memory=cuda]:0-inf=direct,0-inf=nccl,0-16k=packet";

// "1536", "8k", "inf".
std::string size_text(std::size_t bytes) {
  if (bytes == std::numeric_limits<std::size_t>::max()) return "inf";
  for (const auto& [shift, unit] : {std::pair{30, 'g'}, {20, 'm'}, {10, 'k'}}) {
    if (bytes > 0 && bytes % (std::size_t{1} << shift) == 0) return fmt::format("{}{}", bytes >> shift, unit);
  }
  return fmt::format("{}", bytes);
}

}  // namespace

std::string_view default_table() { return kDefaultTable; }

Result<Selector> Selector::create(std::string_view overrides) {
  Selector selector;
  ACCORD_ASSIGN_OR_RETURN(SelectorTable defaults, parse_table(kDefaultTable));
  ACCORD_ASSIGN_OR_RETURN(SelectorTable table, parse_table(overrides));
  selector.defaults_ = std::move(defaults.rows);
  selector.overrides_ = std::move(table.rows);
  selector.canonical_only_ = table.canonical_only;
  return selector;
}

std::string to_string(const SelectorRow& row) {
  using Oversubscribed = SelectorRow::Oversubscribed;
  using Registered = SelectorRow::Registered;
  const SelectorRow any{.collective = row.collective};
  std::vector<std::string> conditions;
  if (row.min_ranks != any.min_ranks || row.max_ranks != any.max_ranks) {
    const std::string most = row.max_ranks == any.max_ranks ? "inf" : std::to_string(row.max_ranks);
    conditions.push_back(fmt::format("ranks={}-{}", row.min_ranks, most));
  }
  if (row.min_hosts != any.min_hosts || row.max_hosts != any.max_hosts) {
    const std::string most = row.max_hosts == any.max_hosts ? "inf" : std::to_string(row.max_hosts);
    conditions.push_back(fmt::format("hosts={}-{}", row.min_hosts, most));
  }
  if (row.oversubscribed != Oversubscribed::kAny)
    conditions.push_back(row.oversubscribed == Oversubscribed::kYes ? "oversubscribed=yes" : "oversubscribed=no");
  if (row.registered != Registered::kAny)
    conditions.push_back(row.registered == Registered::kYes ? "registered=yes" : "registered=no");
  if (row.memory != DeviceType::kCpu) conditions.push_back("memory=cuda");
  return fmt::format("{}{}:{}-{}={}{}", to_string(row.collective),
                     conditions.empty() ? "" : fmt::format("[{}]", fmt::join(conditions, ",")),
                     size_text(row.from_bytes), size_text(row.to_bytes), row.algorithm->name,
                     row.slot_bytes == 0 ? "" : fmt::format("@{}", size_text(row.slot_bytes)));
}

RowVerdict Selector::judge(const SelectorRow& row, const SelectorCall& call, const topology::Topology& topology) const {
  using Oversubscribed = SelectorRow::Oversubscribed;
  using Registered = SelectorRow::Registered;
  if (row.collective != call.collective) return RowVerdict::kOtherCollective;
  if (row.memory != call.memory) return RowVerdict::kMemory;
  if (topology.size() < row.min_ranks || topology.size() > row.max_ranks) return RowVerdict::kRanks;
  if (topology.host_count() < row.min_hosts || topology.host_count() > row.max_hosts) return RowVerdict::kHosts;
  if (row.oversubscribed != Oversubscribed::kAny &&
      topology.oversubscribed() != (row.oversubscribed == Oversubscribed::kYes))
    return RowVerdict::kOversubscribed;
  if (row.registered != Registered::kAny && call.registered != (row.registered == Registered::kYes))
    return RowVerdict::kRegistered;
  if (call.bytes < row.from_bytes || call.bytes >= row.to_bytes) return RowVerdict::kBytes;
  if (row.algorithm->is_library && !call.has_nccl) return RowVerdict::kNoLibrary;
  if (call.memory != DeviceType::kCpu && !row.algorithm->is_library && !call.has_plans) return RowVerdict::kNoReach;
  Order order = row.algorithm->order;
  Buffers buffers = row.algorithm->buffers;
  if (row.algorithm->registered != nullptr) {
    const Plan* plan = row.algorithm->registered->find(topology.size(), call.root);
    if (plan == nullptr) return RowVerdict::kNoPlan;
    order = plan->order;
    buffers = plan->buffers;
  }
  if (!call.has_multicast && needs_multicast(*row.algorithm, topology.size(), call.root))
    return RowVerdict::kNoMulticast;
  const bool reads = row.algorithm->only_reads && call.readable;
  if (buffers != Buffers::kAnywhere && !call.registered && !reads) return RowVerdict::kNeedsWindows;
  if (buffers == Buffers::kInWindowsApart && call.in_place) return RowVerdict::kNeedsApart;
  if (row.algorithm->fits != nullptr && !row.algorithm->fits(topology)) return RowVerdict::kTopology;
  const bool adds_at_once = call.op == ReduceOp::kAvg || call.op == ReduceOp::kPremulSum;
  if (row.algorithm->adds_in_parts && adds_at_once) return RowVerdict::kOp;
  if (canonical_only_ && order != Order::kNone && order != Order::kCanonical) return RowVerdict::kOrder;
  return RowVerdict::kMatches;
}

std::vector<SelectorRow> Selector::rows() const {
  std::vector<SelectorRow> rows = defaults_;
  for (const SelectorRow& row : registered_rows()) rows.push_back(row);
  rows.insert(rows.end(), overrides_.begin(), overrides_.end());
  return rows;
}

Result<Choice> Selector::choose(const SelectorCall& call, const topology::Topology& topology) const {
  const std::vector<SelectorRow> rows = this->rows();
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if (judge(*row, call, topology) == RowVerdict::kMatches) return Choice{row->algorithm, row->slot_bytes};
  }
  return Status(StatusCode::kNotFound,
                fmt::format("the selection table has no row for {} of {} on {} ranks", to_string(call.collective),
                            bytes_text(call.bytes), topology.size()));
}

}  // namespace accord::plan
