#pragma once
// How the ranks of a group that is being formed exchange texts: a state machine without I/O.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord::comm {

/// A message between two ranks of a formation.
struct FormationMessage {
  enum class Kind : std::uint8_t {
    kText,   ///< to rank 0: `texts` has the sender's text of `step`
    kTexts,  ///< from rank 0: `texts` has those of all ranks, in rank order
    kFailed  ///< the formation has failed; `failure`
  };
  Kind kind = Kind::kText;
  std::uint64_t step = 0;  ///< counted from 1
  std::vector<std::string> texts = {};
  std::int64_t patience = 0;  ///< how long the sender, and rank 0 all ranks, will wait from now on, in nanoseconds
  Status failure = {};
};

std::string encode(const FormationMessage& message);
/// Fails with kCorrupt if `bytes` are not a message.
Result<FormationMessage> decode_message(std::string_view bytes);

/// One rank's part. In each step, rank 0 collects a text from every rank and then gives all texts to every rank. The
/// first failure that a rank notices ends the formation: it reaches rank 0, which passes it on. So all ranks that live
/// get either the texts of a step or a failure, unless rank 0 dies, which all notice. Pure.
class FormationProtocol {
 public:
  FormationProtocol(Rank rank, int size);

  struct Outgoing {
    std::vector<Rank> to;
    FormationMessage message;
  };

  /// Begins the next step with this rank's text. REQUIRES: no step is under way, and failure() is ok.
  void begin(std::string text);
  /// `message` came from `from`, which is rank 0 or, on rank 0, any other rank.
  void on_message(Rank from, FormationMessage message);
  /// `peer` cannot be reached any more; `why` is the failure if that matters. Once this rank has the texts of a step,
  /// it matters only if another step begins.
  void on_lost(Rank peer, const Status& why);
  /// This rank cannot go on. `told`: what the others get as the reason, if not `why`.
  void fail(Status why, std::optional<Status> told = std::nullopt);
  /// No further step follows: the ranks may leave.
  void finish() { is_finished_ = true; }

  /// Messages to be sent, in order; each is returned once.
  std::vector<Outgoing> take_outgoing();
  /// The texts of the current step; null while they are missing.
  const std::vector<std::string>* texts() const { return texts_ ? &*texts_ : nullptr; }
  /// Ok until the formation has failed.
  const Status& failure() const { return failure_; }
  /// The failure as the others are told it.
  const Status& told_failure() const { return told_failure_; }
  /// On rank 0, the ranks whose texts of the current step are missing.
  std::vector<Rank> missing() const;

 private:
  std::vector<Rank> others() const;
  void collect();

  const Rank rank_;
  const int size_;
  std::uint64_t step_ = 0;
  bool is_finished_ = false;
  /// On rank 0: by step, what has arrived. A rank may be one step ahead of rank 0.
  std::map<std::uint64_t, std::vector<std::optional<std::string>>> arrived_;
  std::optional<std::vector<std::string>> texts_;
  Status loss_;  ///< noticed after the texts of the current step had arrived
  Status failure_;
  Status told_failure_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace accord::comm
