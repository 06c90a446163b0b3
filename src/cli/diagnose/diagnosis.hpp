#pragma once
// Which rank waits for which, and which rank is the cause: a pure function of the evidence.

#include <optional>
#include <string>
#include <vector>

#include "cli/diagnose/evidence.hpp"

namespace accord::cli {

/// The fault, and the ranks that it concerns.
enum class FindingKind : std::uint8_t {
  kMismatch,  ///< ranks made different calls under one number
  kStopped,   ///< the rank's process is stopped, and others wait for it
  kGone,      ///< its process has ended
  kLeft,      ///< its process is alive and has left the communicator
  kSilent,    ///< it left no dump, although others did
  kBehind,    ///< it has not reached a call in which others wait
  kAllIn,     ///< no rank is missing: all are in the same call, which goes on or is stuck in itself
};
std::string_view to_string(FindingKind kind);

struct Finding {
  FindingKind kind = FindingKind::kBehind;
  std::vector<Rank> ranks;  ///< at fault
  std::string text;         ///< one sentence
};

struct RankState {
  Rank rank = 0;
  int process = 0;
  int host = 0;
  Condition condition = Condition::kNotKnown;
  bool has_log = false;
  bool waits = false;                          ///< it is in a call that has not ended, or that failed with it inside
  std::optional<flight::Operation> call = {};  ///< that call, otherwise the last one that ended
  Direction direction = Direction::kNone;      ///< of the call, if it is a message
  Rank peer = -1;
  std::int64_t since_ns = 0;      ///< time in the call, or since the call ended
  std::vector<Rank> waits_for;    ///< if it waits
  std::size_t queued = 0;         ///< operations queued behind that call
  std::string what_call() const;  ///< such as "call 5, all_reduce of 4 x float32 (sum)"
};

struct GroupDiagnosis {
  std::string id;
  std::string name;
  std::vector<RankState> ranks;
  std::vector<Finding> findings;      ///< the one that explains most comes first
  std::vector<std::string> failures;  ///< messages of ranks whose communicator has failed, each once
  bool someone_waits = false;
};

/// Diagnoses each group, in the order of `groups`. For ranks that still run, waits shorter than kMomentNs are
/// ignored, because every job has them.
std::vector<GroupDiagnosis> diagnose(const std::vector<GroupEvidence>& groups);
inline constexpr std::int64_t kMomentNs = 100'000'000;

}  // namespace accord::cli
