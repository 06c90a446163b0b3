// The keys of the store, each after the prefix of the group:
//
//   ids             a counter: how many processes have come
//   member/ID       what the process ID has written about itself (records.hpp)
//   changes         a counter, raised after each change of a record, so that one request shows that nothing changed
//   latest          the newest round
//   round/N         set once round N is in `latest`: others wait for this key
//   claims/N/A      a counter: the process that raises it to 1 publishes round N, for ever; A is the next number if
//   that
//                   process dies before it has
//   finished        the job is done
//
// A process waits by writing its record and then, until a round includes it, finds out who leads (decision.hpp). The
// leader publishes a round once all are there, and the others wait for its key, watching the leader. The round's uuid
// and handles then form the group (comm/formation). If that fails, all write new records, and it begins again.
#include "elastic/members.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/internal.hpp"
#include "transport/tcp/call.hpp"

namespace accord::elastic {
namespace {

constexpr Duration kLeaderPause = std::chrono::milliseconds(2);
constexpr Duration kFollowerWait = std::chrono::milliseconds(50);
/// How long a group is not formed because another process may still answer.
constexpr Duration kAnswerTimeout = std::chrono::milliseconds(500);
/// How long the process that publishes a round may take from its claim to the round.
constexpr Duration kClaimTimeout = std::chrono::seconds(1);

std::string member_key(std::int64_t id) { return fmt::format("member/{}", id); }
std::string round_key(std::int64_t number) { return fmt::format("round/{}", number); }
std::string claim_key(std::int64_t number, int attempt) { return fmt::format("claims/{}/{}", number, attempt); }

}  // namespace

Members::Members(std::shared_ptr<Store> store, const ElasticOptions& options, std::unique_ptr<LifeLine> line)
    : store_(make_prefix_store(std::move(store), fmt::format("accord/elastic/{}", options.name))),
      min_ranks_(options.min_ranks),
      max_ranks_(options.max_ranks),
      last_call_(options.last_call),
      where_(fmt::format("elastic group \"{}\"", options.name)),
      line_(std::move(line)) {}

Result<std::unique_ptr<Members>> Members::open(std::shared_ptr<Store> store, const ElasticOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<LifeLine> line, LifeLine::open());
  std::unique_ptr<Members> members(new Members(std::move(store), options, std::move(line)));
  ACCORD_RETURN_IF_ERROR(members->enter());
  return members;
}

Members::~Members() {
  const Result<comm::Handle> own = comm::parse_handle(line_->address());
  if (me_ == 0 || own->process != ::getpid()) return;  // a forked child does not speak for its parent
  (void)write({.has_left = true, .handle = {}, .life = {}});
}

/// Becomes known to the others.
Status Members::enter() {
  const Result<std::int64_t> id = store_->add("ids", 1);
  if (!id.ok()) return id.status().with_context(where_);
  me_ = *id;
  return {};
}

Status Members::write(const MemberRecord& record) {
  if (const Status set = store_->set(member_key(me_), to_text(record)); !set.ok()) return set.with_context(where_);
  const Result<std::int64_t> changes = store_->add("changes", 1);
  return changes.ok() ? Status() : changes.status().with_context(where_);
}

Result<std::optional<std::string>> Members::find(const std::string& key) const {
  Result<std::string> text = store_->get(key, Duration::zero());
  if (text.ok()) return std::optional(*std::move(text));
  if (text.status().code() == StatusCode::kTimeout) return std::optional<std::string>();
  return text.status().with_context(where_);
}

Result<bool> Members::has_changed() {
  const Result<std::int64_t> changes = store_->add("changes", 0);
  if (!changes.ok()) return changes.status().with_context(where_);
  return std::exchange(changes_, *changes) != *changes;
}

Status Members::read_latest() {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<std::string> text, find("latest"));
  if (text) {
    ACCORD_ASSIGN_OR_RETURN(Round round, parse_round(*text, where_ + ", latest"));
    if (round.number > latest_.number) {
      latest_ = std::move(round);
      claims_ = 0;
      claim_deadline_.reset();
    }
  }
  const Result<std::int64_t> ids = store_->add("ids", 0);
  if (!ids.ok()) return ids.status().with_context(where_);
  ids_ = *ids;
  // What is not known to wait may have changed.
  std::erase_if(records_, [this](const auto& entry) { return presence(entry.first) != Presence::kWaiting; });
  return {};
}

Result<bool> Members::is_finished() const {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<std::string> text, find("finished"));
  return text.has_value();
}

const std::optional<MemberRecord>& Members::record(std::int64_t id) {
  const auto known = records_.find(id);
  if (known != records_.end()) return known->second;
  std::optional<MemberRecord> record;
  const std::string key = member_key(id);
  const Result<std::optional<std::string>> text = find(key);
  if (!text.ok()) {
    if (error_.ok()) error_ = text.status();
  } else if (*text) {
    Result<MemberRecord> parsed = parse_member(**text, where_ + ", " + key);
    if (parsed.ok()) {
      record = *std::move(parsed);
    } else if (error_.ok()) {
      error_ = parsed.status();
    }
  }
  return records_[id] = std::move(record);
}

Presence Members::presence(std::int64_t id) {
  const std::optional<MemberRecord>& theirs = record(id);
  if (!theirs || theirs->has_left) return Presence::kAbsent;
  const auto left_out = left_out_.find(id);
  if (left_out != left_out_.end() && left_out->second == theirs->handle) return Presence::kAbsent;
  const std::vector<std::int64_t>& ranks = latest_.members;
  const bool was_in_latest = std::find(ranks.begin(), ranks.end(), id) != ranks.end();
  return was_in_latest && theirs->after < latest_.number ? Presence::kWorking : Presence::kWaiting;
}

Life Members::life(std::int64_t id) {
  const std::optional<MemberRecord>& theirs = record(id);
  if (!theirs) return Life::kUnknown;
  if (theirs->has_left) return Life::kGone;
  auto watch = watches_.find(id);
  if (watch == watches_.end()) {
    const Result<comm::Handle> address = comm::parse_handle(theirs->life);
    if (!address.ok()) {
      if (error_.ok()) error_ = address.status().with_context(where_);
      return Life::kGone;
    }
    watch = watches_.try_emplace(id, *address).first;
  }
  const Life life = watch->second.look();
  is_undecided_ = is_undecided_ || life == Life::kUnknown;
  return life;
}

Situation Members::situation() {
  return {.latest = latest_,
          .me = me_,
          .ids = ids_,
          .min_ranks = min_ranks_,
          .max_ranks = max_ranks_,
          .presence = [this](std::int64_t id) { return presence(id); },
          .life = [this](std::int64_t id) { return life(id); }};
}

Result<bool> Members::is_included() {
  const std::vector<std::int64_t>& members = latest_.members;
  const auto place = static_cast<std::size_t>(std::find(members.begin(), members.end(), me_) - members.begin());
  if (place < members.size() && latest_.handles[place] == own_.handle) return true;
  const bool is_known = me_ > latest_.ids || place < members.size() ||
                        std::find(latest_.others.begin(), latest_.others.end(), me_) != latest_.others.end();
  if (!is_known) ACCORD_RETURN_IF_ERROR(enter());  // the others believed it dead
  if (!is_known || place < members.size()) {       // or took it in by an older handle
    own_.after = latest_.number;
    ACCORD_RETURN_IF_ERROR(write(own_));
  }
  return false;
}

bool Members::others_work() {
  return std::any_of(latest_.members.begin(), latest_.members.end(), [this](std::int64_t id) {
    return id != me_ && presence(id) == Presence::kWorking && life(id) == Life::kAlive;
  });
}

// A process waits `timeout` for ranks that do not come, and twice as long for a leader, which may have begun later. All
// time in which others work does not count.
Result<std::optional<Round>> Members::next_round(const std::string& handle, Duration timeout) {
  timeout_ = timeout;
  error_ = {};
  records_.clear();
  changes_ = -1;
  claim_deadline_.reset();
  own_ = {.after = latest_.number, .handle = handle, .life = line_->address()};
  ACCORD_RETURN_IF_ERROR(write(own_));
  const Deadline last_call = Deadline::in(last_call_);
  const Deadline patience = Deadline::in(timeout);
  const Deadline answers = Deadline::in(kAnswerTimeout);
  Deadline deadline = patience;
  std::int64_t leader = 0;
  while (!is_closed_) {
    ACCORD_ASSIGN_OR_RETURN(const bool changed, has_changed());
    if (changed) {
      ACCORD_ASSIGN_OR_RETURN(const bool finished, is_finished());
      if (finished) return std::optional<Round>();
      const std::int64_t before = latest_.number;
      ACCORD_RETURN_IF_ERROR(read_latest());
      records_.erase(leader);  // it may have given up
      if (latest_.number != before) {
        ACCORD_ASSIGN_OR_RETURN(const bool included, is_included());
        if (included) {
          watches_.clear();  // the ranks are about to use as many descriptors
          return std::optional(latest_);
        }
        continue;
      }
    }
    Situation now = situation();
    now.last_call_is_over = last_call.passed();
    now.patience_is_over = patience.passed();
    is_undecided_ = false;
    const Decision decision = decide(now);
    if (!error_.ok()) return error_;
    switch (decision.kind) {
      case Decision::Kind::kPublish:
        if (is_undecided_ && !answers.passed()) {
          std::this_thread::sleep_for(kLeaderPause);
        } else {
          ACCORD_RETURN_IF_ERROR(claim(decision));
        }
        break;
      case Decision::Kind::kAwaitRanks:
        if (deadline.passed()) return timed_out(decision);
        std::this_thread::sleep_for(kLeaderPause);
        break;
      case Decision::Kind::kAwaitWorkers:
        if (others_work()) deadline = Deadline::in(timeout);
        if (deadline.passed() && now.patience_is_over) return unreachable();
        std::this_thread::sleep_for(kLeaderPause);
        break;
      case Decision::Kind::kFollow: {
        if (std::exchange(leader, decision.leader) != decision.leader) deadline = Deadline::in(2 * timeout);
        if (deadline.passed()) {
          if (!others_work()) left_out_[leader] = record(leader)->handle;
          deadline = Deadline::in(2 * timeout);
        }
        const Result<std::string> news = store_->get(round_key(latest_.number + 1), kFollowerWait);
        if (!news.ok() && news.status().code() != StatusCode::kTimeout) return news.status().with_context(where_);
        break;
      }
    }
  }
  return Status(StatusCode::kAborted, where_ + " was closed");
}

Status Members::claim(const Decision& decision) {
  if (!claim_deadline_) {
    const Result<std::int64_t> claims = store_->add(claim_key(latest_.number + 1, claims_), 1);
    if (!claims.ok()) return claims.status().with_context(where_);
    if (*claims == 1) return publish(decision);
    claim_deadline_ = Deadline::in(kClaimTimeout);
  } else if (claim_deadline_->passed()) {
    ++claims_;
    claim_deadline_.reset();
  } else {
    std::this_thread::sleep_for(kLeaderPause);
  }
  return {};
}

Status Members::publish(const Decision& decision) {
  ACCORD_ASSIGN_OR_RETURN(std::string uuid, transport::tcp::random_cookie());
  Round round{.number = latest_.number + 1,
              .uuid = std::move(uuid),
              .members = decision.members,
              .handles = {},
              .others = decision.others,
              .ids = ids_};
  for (const std::int64_t id : round.members) round.handles.push_back(id == me_ ? own_.handle : record(id)->handle);
  arrange(round);
  const std::string text = to_text(round);
  Status done = store_->set("latest", text);
  if (done.ok()) done = store_->add("changes", 1).status();
  if (done.ok()) done = store_->set(round_key(round.number), "");
  if (!done.ok()) return done.with_context(where_);
  // What nobody needs any more. A failure only leaves it in the store.
  for (const std::int64_t id : latest_.members)
    if (life(id) == Life::kGone) (void)store_->erase(member_key(id));
  (void)store_->erase(round_key(latest_.number));
  return {};
}

void Members::arrange(Round& round) const {
  struct Member {
    std::int64_t id;
    std::string handle;
    std::size_t host;  ///< hosts in the order of their first members
  };
  std::vector<std::string> hosts;
  std::vector<Member> members;
  for (std::size_t i = 0; i < round.members.size(); ++i) {
    const Result<comm::Handle> handle = comm::parse_handle(round.handles[i]);
    const std::string host = handle.ok() ? handle->host : "";
    const auto place = std::find(hosts.begin(), hosts.end(), host);
    members.push_back({round.members[i], round.handles[i], static_cast<std::size_t>(place - hosts.begin())});
    if (place == hosts.end()) hosts.push_back(host);
  }
  std::stable_sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.host < b.host; });
  for (std::size_t i = 0; i < members.size(); ++i) {
    round.members[i] = members[i].id;
    round.handles[i] = members[i].handle;
  }
}

Status Members::timed_out(const Decision& decision) const {
  return Status(StatusCode::kTimeout, fmt::format("{}: timed out: {} of at least {} ranks came within {}", where_,
                                                  decision.members.size(), min_ranks_, duration_text(timeout_)));
}

Status Members::unreachable() const {
  return Status(StatusCode::kTimeout,
                fmt::format("{}: timed out: no rank of the last group can be reached, and it is not "
                            "known whether they work, after {}",
                            where_, duration_text(timeout_)));
}

void Members::report(const Status& why) {
  if (why.code() != StatusCode::kTimeout) return;
  for (const Rank rank : why.ranks()) {
    const auto place = static_cast<std::size_t>(rank);
    if (place < latest_.members.size() && latest_.members[place] != me_)
      left_out_[latest_.members[place]] = latest_.handles[place];
  }
}

void Members::give_up() { (void)write({.has_left = true, .handle = {}, .life = {}}); }

Result<bool> Members::others_wait() {
  ACCORD_ASSIGN_OR_RETURN(const bool changed, has_changed());
  if (!changed && !others_wait_ && !is_undecided_) return false;
  error_ = {};
  is_undecided_ = false;
  if (changed) ACCORD_RETURN_IF_ERROR(read_latest());
  others_wait_ = has_place_for_more(situation());
  if (!error_.ok()) return error_;
  return others_wait_;
}

Status Members::finish() {
  Status done = store_->set("finished", "");
  if (done.ok()) done = store_->add("changes", 1).status();
  return done.ok() ? done : done.with_context(where_);
}

void Members::close() { is_closed_ = true; }

}  // namespace accord::elastic
