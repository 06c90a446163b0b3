#pragma once
// Selects the algorithm that serves a call, from a table with one grammar for defaults, tuner results and user
// overrides.
//
//   table  = item { ";" item }       "all_reduce:0-1k=packet,1k-inf=two_shot@512k;broadcast:0-inf=direct"
//   item   = rule | "deterministic=canonical"
//   rule   = collective [ "[" conditions "]" ] ":" range { "," range }
//   conditions = condition { "," condition }
//   condition  = "ranks=" a "-" b | "hosts=" a "-" b | "oversubscribed=" ("yes" | "no")
//              | "registered=" ("yes" | "no") | "memory=" ("cpu" | "cuda")
//   range  = bytes "-" bytes "=" algorithm [ "@" slot bytes ]
//
// Blanks, line ends and comments ("#" to the end of the line) may separate words.
//
// Bytes are those of the caller's buffer as bounds_of() counts it (of one part, if it is divided), from the first
// inclusive to the second exclusive. The last rule that matches wins, so overrides are appended. "@" limits the
// scratch that a round uses, and thereby the slice.
//
// A call is registered if the buffers of all ranks are in windows of the group. Rows whose algorithm needs that, or
// needs separate input and output, match only calls that provide it. A row whose algorithm only reads peers' inputs
// also matches if the ranks may read each other's memory. A rule without "memory" is for CPU memory. On GPUs, the
// algorithm "nccl" stands for that library and matches if it is available; plans match if the GPUs of all ranks reach
// each other, "nvls" if a switch between them has multicast. With "deterministic=canonical", rows whose algorithm
// adds in another order match nothing.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "accord/buffer.hpp"
#include "plan/algorithms.hpp"
#include "plan/plan.hpp"
#include "topology/topology.hpp"

namespace accord::plan {

/// One range of the table.
struct SelectorRow {
  Collective collective;
  int min_ranks = 1;
  int max_ranks = 1 << 30;
  int min_hosts = 1;
  int max_hosts = 1 << 30;
  enum class Oversubscribed : std::uint8_t { kAny, kYes, kNo } oversubscribed = Oversubscribed::kAny;
  enum class Registered : std::uint8_t { kAny, kYes, kNo } registered = Registered::kAny;
  DeviceType memory = DeviceType::kCpu;
  std::size_t from_bytes = 0;
  std::size_t to_bytes = 0;  ///< exclusive
  const AlgorithmEntry* algorithm = nullptr;
  std::size_t slot_bytes = 0;  ///< 0: the communicator's
  bool operator==(const SelectorRow&) const = default;
};

/// A row in the grammar above: "all_reduce[ranks=9-inf]:0-1k=packet".
std::string to_string(const SelectorRow& row);

/// The properties of a call that the choice depends on.
struct SelectorCall {
  Collective collective = Collective::kBarrier;
  std::size_t bytes = 0;
  Rank root = 0;
  ReduceOp op = ReduceOp::kSum;
  bool registered = false;  ///< the buffers of all ranks are in windows
  bool readable = false;    ///< the ranks may read each other's memory and know the location of each part
  bool in_place = false;    ///< registered calls: input and output overlap
  DeviceType memory = DeviceType::kCpu;
  // Device calls:
  bool has_nccl = false;       ///< and it supports what the call asks for
  bool has_plans = false;      ///< the ranks' GPUs reach each other, and a device can run the call's plans
  bool has_multicast = false;  ///< and a switch between them reaches all at once
};

/// Whether a row serves a call, or the first reason why it does not.
enum class RowVerdict : std::uint8_t {
  kMatches,
  kOtherCollective,
  kRanks,
  kHosts,
  kOversubscribed,
  kRegistered,
  kMemory,
  kNoLibrary,
  kNoReach,
  kNoMulticast,
  kBytes,
  kNoPlan,
  kTopology,
  kNeedsWindows,
  kNeedsApart,
  kOp,
  kOrder,
};

/// The selector's result.
struct Choice {
  const AlgorithmEntry* algorithm = nullptr;
  std::size_t slot_bytes = 0;
};

class Selector {
 public:
  /// Uses the defaults of this build, followed by `overrides` in the grammar above. kInvalidArgument names the place
  /// and the nearest name.
  static Result<Selector> create(std::string_view overrides);

  /// Fails with kNotFound if no row of the table matches.
  Result<Choice> choose(const SelectorCall& call, const topology::Topology& topology) const;
  RowVerdict judge(const SelectorRow& row, const SelectorCall& call, const topology::Topology& topology) const;
  /// "deterministic=canonical".
  bool canonical_only() const { return canonical_only_; }
  /// The defaults of this build, then the rows registered so far with a range of sizes, then the overrides; the last
  /// match decides.
  std::vector<SelectorRow> rows() const;

 private:
  std::vector<SelectorRow> defaults_;
  std::vector<SelectorRow> overrides_;
  bool canonical_only_ = false;
};

/// The default table as text.
std::string_view default_table();

/// A table as it was written.
struct SelectorTable {
  std::vector<SelectorRow> rows;
  std::vector<std::size_t> places;  ///< for each row, the position in the text where its range begins
  bool canonical_only = false;      ///< "deterministic=canonical"
};

/// Parses one table.
Result<SelectorTable> parse_table(std::string_view text);

}  // namespace accord::plan
