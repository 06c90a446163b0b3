#pragma once
// Who waits for whom, and because of whom: a pure function of what is known.

#include <optional>
#include <string>
#include <vector>

#include "cli/diagnose/evidence.hpp"

namespace accord::cli {

/// What is wrong, and with which ranks.
enum class FindingKind : std::uint8_t {
  kMismatch,  ///< ranks called different things under one number
  kStopped,   ///< its process is stopped, and others wait for it
  kGone,      ///< its process has ended
  kLeft,      ///< its process lives and has left the communicator
  kSilent,    ///< it left no dump, while others did
  kBehind,    ///< it has not come to a call in which others wait
  kAllIn,     ///< nobody is missing: all ranks are in the same call, which goes on or is stuck in itself
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
  bool waits = false;                                ///< it is in a call that has not ended, or in which it failed
  std::optional<comm::flight::Operation> call = {};  ///< that one, else the last one that ended
  Direction direction = Direction::kNone;            ///< of the call, if it is a message
  Rank peer = -1;
  std::int64_t since_ns = 0;      ///< how long it has been in the call, or since the call ended
  std::vector<Rank> waits_for;    ///< of one that waits
  std::size_t queued = 0;         ///< works behind that call
  std::string what_call() const;  ///< "call 5, all_reduce of 4 x float32 (sum)"
};

struct GroupDiagnosis {
  std::string id;
  std::string name;
  std::vector<RankState> ranks;
  std::vector<Finding> findings;      ///< what explains most comes first
  std::vector<std::string> failures;  ///< messages of ranks whose communicator has failed, each once
  bool someone_waits = false;
};

/// In the order of `groups`. Of ranks that still run, waits shorter than kMoment are passed over: they are a part of any job.
std::vector<GroupDiagnosis> diagnose(const std::vector<GroupEvidence>& groups);
inline constexpr std::int64_t kMomentNs = 100'000'000;

}  // namespace accord::cli
