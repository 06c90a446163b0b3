// The keys:
//
//   claims/N/A      a counter: the process that raises it to 1 writes attempt A of round N
//   proposal/N/A    the text of this attempt
//   sealed/N/A      a counter: the process that raises it to 1 decides about the attempt
//   round/N         round N, once it is decided; others wait for this key
//   latest          a number from which newer rounds are looked for
//   changes         a counter, raised after each change
//
// A process that decides a round may stop at any moment and go on later. So it seals its proposal: if it is the first
// to do so, the proposal is the round. Another one that has waited long enough seals it as well: if that one is the
// first, the attempt is void; otherwise it announces the proposal in place of its author. So a round never has two
// texts.
#include "elastic/rounds.hpp"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "base/text.hpp"

namespace accord::elastic {
namespace {

/// How long the process that decides a round may take from its claim to the round.
constexpr Duration kClaimTimeout = std::chrono::seconds(1);
constexpr Duration kClaimPause = std::chrono::milliseconds(2);
/// Rounds whose keys stay in the store, for processes that were stopped for some time.
constexpr std::int64_t kRoundsKept = 16;
constexpr int kAttemptsErased = 2;

/// A store that says later than this that a key is not set has not answered.
constexpr Duration kLateAnswer = std::chrono::seconds(2);

std::string round_key(std::int64_t number) { return fmt::format("round/{}", number); }
std::string attempt_key(std::string_view kind, std::int64_t number, int attempt) {
  return fmt::format("{}/{}/{}", kind, number, attempt);
}

}  // namespace

GroupStore::GroupStore(std::shared_ptr<Store> store, std::string_view name, std::string where, Duration patience)
    : store_(make_prefix_store(std::move(store), fmt::format("accord/elastic/{}", name))),
      where_(std::move(where)),
      patience_(patience) {}

Status GroupStore::failure(const Status& status) const {
  if (status.ok()) return status;
  const bool lacks = status.code() == StatusCode::kResourceExhausted;
  return Status(lacks ? status.code() : StatusCode::kIo, fmt::format("{}: {}", where_, status.message()));
}

Status GroupStore::set(const std::string& key, std::string_view text) { return failure(store_->set(key, text)); }

Result<std::int64_t> GroupStore::raise(const std::string& key, std::int64_t by) {
  Result<std::int64_t> sum = store_->add(key, by);
  if (!sum.ok()) return failure(sum.status());
  return sum;
}

Result<std::optional<std::string>> GroupStore::find(const std::string& key, Duration timeout) {
  const Deadline patience = Deadline::in(patience_);
  while (true) {
    const Deadline answer = Deadline::in(timeout + kLateAnswer);
    Result<std::string> text = store_->get(key, timeout);
    if (text.ok()) return std::optional(*std::move(text));
    if (text.status().code() != StatusCode::kTimeout) return failure(text.status());
    if (!answer.passed()) return std::optional<std::string>();
    if (patience.passed()) return failure(text.status());  // the store's host has stood still, not the key been unset
  }
}

Result<bool> Rounds::read(std::int64_t number) {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.find(round_key(number)));
  if (!text) return false;
  ACCORD_ASSIGN_OR_RETURN(latest_, parse_round(*text, fmt::format("{}, round/{}", store_.where(), number)));
  attempt_ = 0;
  claim_deadline_.reset();
  return true;
}

Status Rounds::read() {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.find("latest"));
  if (text) {
    const Result<std::int64_t> number = parse_integer(*text, "latest");
    if (!number.ok())
      return Status(StatusCode::kCorrupt, fmt::format("{}, latest is {}", store_.where(), quoted_text(*text)));
    if (*number > latest_.number) ACCORD_RETURN_IF_ERROR(read(*number).status());
  }
  while (true) {
    ACCORD_ASSIGN_OR_RETURN(const bool is_there, read(latest_.number + 1));
    if (!is_there) return {};
  }
}

Status Rounds::decide(const std::function<Result<Round>()>& make) {
  const std::int64_t number = latest_.number + 1;
  if (!claim_deadline_) {
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t claims, store_.raise(attempt_key("claims", number, attempt_), 1));
    if (claims == 1) {
      ACCORD_ASSIGN_OR_RETURN(Round round, make());
      round.number = number;
      return propose(round);
    }
    claim_deadline_ = Deadline::in(kClaimTimeout);
  } else if (claim_deadline_->passed()) {
    const std::string proposal = attempt_key("proposal", number, attempt_);
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t seals, store_.raise(attempt_key("sealed", number, attempt_), 1));
    ACCORD_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.find(proposal));
    if (seals > 1 && text) return announce(number, *text);
    ++attempt_;
    claim_deadline_.reset();
  } else {
    std::this_thread::sleep_for(kClaimPause);
  }
  return {};
}

Status Rounds::propose(const Round& round) {
  const std::string text = to_text(round);
  ACCORD_RETURN_IF_ERROR(store_.set(attempt_key("proposal", round.number, attempt_), text));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t seals, store_.raise(attempt_key("sealed", round.number, attempt_), 1));
  if (seals == 1) return announce(round.number, text);
  ++attempt_;  // others have waited for this process for too long
  return {};
}

Status Rounds::announce(std::int64_t number, const std::string& text) {
  ACCORD_RETURN_IF_ERROR(store_.set(round_key(number), text));
  ACCORD_RETURN_IF_ERROR(store_.raise("changes", 1).status());
  ACCORD_RETURN_IF_ERROR(store_.set("latest", std::to_string(number)));
  const std::int64_t old = number - kRoundsKept;
  if (old < 1) return {};
  store_.erase(round_key(old));
  for (int attempt = 0; attempt < kAttemptsErased; ++attempt)
    for (const char* kind : {"claims", "proposal", "sealed"}) store_.erase(attempt_key(kind, old, attempt));
  return {};
}

Result<bool> Rounds::await_next(Duration timeout) {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.find(round_key(latest_.number + 1), timeout));
  return text.has_value();
}

}  // namespace accord::elastic
