// The keys of the store, besides those of the rounds (rounds.cpp):
//
//   ids             a counter: how many processes have come
//   member/ID       the record that the process ID has written about itself (records.hpp)
//   changes         a counter, raised after each change, so that one request shows that nothing has changed
//   finished        the job is done
//
// A process waits by writing its record and then, until a round includes it, finds out who leads (decision.hpp). The
// leader decides a round once all are there, and the others wait for it, watching the leader. The round's uuid and
// handles then form the group (comm/formation). If that fails, all write new records, and it begins again.
#include "elastic/members.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/text.hpp"
#include "comm/internal.hpp"
#include "transport/tcp/call.hpp"

namespace accord::elastic {
namespace {

constexpr Duration kLeaderPause = std::chrono::milliseconds(2);
constexpr Duration kFollowerWait = std::chrono::milliseconds(50);
/// How long a group is not formed because another process may still answer.
constexpr Duration kAnswerTimeout = std::chrono::milliseconds(500);

std::string member_key(std::int64_t id) { return fmt::format("member/{}", id); }

/// Orders the members so that those of one host are neighbours.
void arrange(Round& round) {
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

}  // namespace

Members::Members(std::shared_ptr<Store> store, const ElasticOptions& options, std::unique_ptr<LifeLine> line)
    : store_(std::move(store), options.name, fmt::format("elastic group \"{}\"", options.name),
             options.communicator.timeout.value_or(config()->timeout)),
      rounds_(store_),
      min_ranks_(options.min_ranks),
      max_ranks_(options.max_ranks),
      last_call_(options.last_call),
      line_(std::move(line)),
      life_address_(line_->address()),
      process_(::getpid()) {}

Result<std::unique_ptr<Members>> Members::open(std::shared_ptr<Store> store, const ElasticOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<LifeLine> line, LifeLine::open());
  std::unique_ptr<Members> members(new Members(std::move(store), options, std::move(line)));
  ACCORD_RETURN_IF_ERROR(members->enter());
  return members;
}

Members::~Members() {
  if (me_ == 0 || process_ != ::getpid()) return;  // a forked child does not speak for its parent
  leave();
}

void Members::leave() {
  if (!has_left_) give_up();
  has_left_ = true;
  line_.reset();
}

/// Becomes known to the others.
Status Members::enter() {
  ACCORD_ASSIGN_OR_RETURN(me_, store_.raise("ids", 1));
  return {};
}

Status Members::write(const MemberRecord& record) {
  ACCORD_RETURN_IF_ERROR(store_.set(member_key(me_), to_text(record)));
  return store_.raise("changes", 1).status();
}

Result<bool> Members::has_changed() {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t changes, store_.raise("changes", 0));
  return std::exchange(changes_, changes) != changes;
}

Status Members::read_news() {
  ACCORD_RETURN_IF_ERROR(rounds_.read());
  ACCORD_ASSIGN_OR_RETURN(ids_, store_.raise("ids", 0));
  // Records of processes that are not known to wait may have changed.
  std::erase_if(records_, [this](const auto& entry) { return presence(entry.first) != Presence::kWaiting; });
  return {};
}

Result<bool> Members::is_finished() {
  ACCORD_ASSIGN_OR_RETURN(const std::optional<std::string> text, store_.find("finished"));
  return text.has_value();
}

const std::optional<MemberRecord>& Members::record(std::int64_t id) {
  const auto known = records_.find(id);
  if (known != records_.end()) return known->second;
  std::optional<MemberRecord> record;
  const std::string key = member_key(id);
  const Result<std::optional<std::string>> text = store_.find(key);
  if (!text.ok()) {
    if (error_.ok()) error_ = text.status();
  } else if (*text) {
    Result<MemberRecord> parsed = parse_member(**text, where() + ", " + key);
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
  if (left_out != left_out_.end() && left_out->second == to_text(*theirs)) return Presence::kAbsent;
  return was_in_latest(id) && theirs->after < latest().number ? Presence::kWorking : Presence::kWaiting;
}

Life Members::life(std::int64_t id) {
  const std::optional<MemberRecord>& theirs = record(id);
  if (!theirs) return Life::kUnknown;
  if (theirs->has_left) return Life::kGone;
  auto watch = watches_.find(id);
  if (watch == watches_.end()) {
    const Result<comm::Handle> address = comm::parse_handle(theirs->life);
    if (!address.ok()) {
      if (error_.ok()) error_ = address.status().with_context(where());
      return Life::kGone;
    }
    watch = watches_.try_emplace(id, *address).first;
  }
  const Life life = watch->second.look();
  is_undecided_ = is_undecided_ || life == Life::kUnknown;
  return life;
}

Situation Members::situation() {
  return {.latest = latest(),
          .me = me_,
          .ids = ids_,
          .min_ranks = min_ranks_,
          .max_ranks = max_ranks_,
          .presence = [this](std::int64_t id) { return presence(id); },
          .life = [this](std::int64_t id) { return life(id); }};
}

Result<bool> Members::is_included() {
  const std::vector<std::int64_t>& members = latest().members;
  const auto place = static_cast<std::size_t>(std::find(members.begin(), members.end(), me_) - members.begin());
  if (place < members.size() && latest().handles[place] == own_.handle) return true;
  const bool is_known = me_ > latest().ids || place < members.size() ||
                        std::find(latest().others.begin(), latest().others.end(), me_) != latest().others.end();
  if (!is_known) ACCORD_RETURN_IF_ERROR(enter());  // the others believed it dead
  own_.after = latest().number;                    // they may have left it out until it writes again
  ACCORD_RETURN_IF_ERROR(write(own_));
  return false;
}

bool Members::others_work() {
  return std::any_of(latest().members.begin(), latest().members.end(), [this](std::int64_t id) {
    return id != me_ && presence(id) == Presence::kWorking && life(id) == Life::kAlive;
  });
}

Result<std::optional<Round>> Members::next_round(const std::string& handle, Duration timeout) {
  Result<std::optional<Round>> round = std::optional<Round>();
  {
    const std::lock_guard lock(running_);
    round = wait_for_round(handle, timeout);
  }
  leave_if_closed();
  return round;
}

// A process waits `timeout` for ranks that do not come, whoever leads meanwhile, and twice as long for one leader,
// which may have begun later. All time in which others work does not count.
Result<std::optional<Round>> Members::wait_for_round(const std::string& handle, Duration timeout) {
  const Status closed(StatusCode::kAborted, where() + " was closed");
  if (is_closed_) return closed;
  timeout_ = timeout;
  error_ = {};
  records_.clear();
  changes_ = -1;
  own_ = {.after = latest().number, .handle = handle, .life = life_address_};
  ACCORD_RETURN_IF_ERROR(write(own_));
  const Deadline last_call = Deadline::in(last_call_);
  const Deadline patience = Deadline::in(timeout);
  const Duration twice = timeout + std::min(timeout, Duration::max() - timeout);
  const Deadline answers = Deadline::in(kAnswerTimeout);
  Deadline ranks = patience, deadline = patience;
  std::int64_t leader = 0;
  while (!is_closed_) {
    ACCORD_ASSIGN_OR_RETURN(const bool changed, has_changed());
    if (changed) {
      ACCORD_ASSIGN_OR_RETURN(const bool finished, is_finished());
      if (finished) return std::optional<Round>();
      const std::int64_t before = latest().number;
      ACCORD_RETURN_IF_ERROR(read_news());
      records_.erase(leader);  // it may have given up
      if (latest().number != before) {
        ACCORD_ASSIGN_OR_RETURN(const bool included, is_included());
        if (included) {
          watches_.clear();  // the ranks are about to use as many descriptors
          return std::optional(latest());
        }
        ranks = deadline = Deadline::in(timeout);
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
          ACCORD_RETURN_IF_ERROR(publish(decision));
        }
        break;
      case Decision::Kind::kAwaitRanks:
        if (ranks.passed()) return timed_out(decision);
        std::this_thread::sleep_for(kLeaderPause);
        break;
      case Decision::Kind::kAwaitWorkers:
        if (others_work()) ranks = deadline = Deadline::in(timeout);
        if (deadline.passed() && now.patience_is_over) return unreachable();
        if (was_in_latest(me_)) {
          std::this_thread::sleep_for(kLeaderPause);
        } else {
          ACCORD_RETURN_IF_ERROR(await_round());
        }
        break;
      case Decision::Kind::kFollow:
        if (std::exchange(leader, decision.leader) != decision.leader) {
          deadline = Deadline::in(twice);
          records_.erase(leader);  // it may have given up since it was read
          break;
        }
        if (deadline.passed()) {
          if (others_work()) {
            ranks = Deadline::in(timeout);
          } else {
            leave_out(leader);
          }
          deadline = Deadline::in(twice);
        }
        ACCORD_RETURN_IF_ERROR(await_round());
        break;
    }
  }
  return closed;
}

bool Members::was_in_latest(std::int64_t id) const {
  return std::find(latest().members.begin(), latest().members.end(), id) != latest().members.end();
}

Status Members::await_round() {
  ACCORD_ASSIGN_OR_RETURN(const bool is_decided, rounds_.await_next(kFollowerWait));
  if (is_decided) changes_ = -1;  // the process that announced it may have died before it raised the counter
  return {};
}

Status Members::publish(const Decision& decision) {
  const std::vector<std::int64_t> former = latest().members;
  ACCORD_RETURN_IF_ERROR(rounds_.decide([&]() -> Result<Round> {
    ACCORD_ASSIGN_OR_RETURN(std::string uuid, transport::tcp::random_cookie());
    Round round{
        .uuid = std::move(uuid), .members = decision.members, .handles = {}, .others = decision.others, .ids = ids_};
    for (const std::int64_t id : round.members) round.handles.push_back(id == me_ ? own_.handle : record(id)->handle);
    arrange(round);
    return round;
  }));
  for (const std::int64_t id : former)  // nobody asks for their records any more
    if (life(id) == Life::kGone) store_.erase(member_key(id));
  return {};
}

Status Members::timed_out(const Decision& decision) {
  std::string text = fmt::format("{}: timed out: {} of at least {} ranks came within {}", where(),
                                 decision.members.size(), min_ranks_, duration_text(timeout_));
  for (std::int64_t id = 1; id <= ids_; ++id) {
    if (id == me_ || presence(id) != Presence::kWaiting || life(id) == Life::kAlive) continue;
    const Result<comm::Handle> address = comm::parse_handle(record(id)->life);
    if (!address.ok()) continue;
    text += fmt::format("; process {} at {}, port {}, waits too or has died: it cannot be reached", address->process,
                        fmt::join(address->addresses, " and "), address->port);
  }
  return Status(StatusCode::kTimeout, std::move(text));
}

Status Members::unreachable() const {
  return Status(StatusCode::kTimeout,
                fmt::format("{}: timed out: no rank of the last group can be reached, and it is not "
                            "known whether they work, after {}",
                            where(), duration_text(timeout_)));
}

void Members::leave_out(std::int64_t id) {
  const std::optional<MemberRecord>& theirs = record(id);
  if (theirs) left_out_[id] = to_text(*theirs);
}

void Members::report(std::span<const Rank> late) {
  for (const Rank rank : late) {
    const auto place = static_cast<std::size_t>(rank);
    if (place < latest().members.size() && latest().members[place] != me_) leave_out(latest().members[place]);
  }
}

void Members::give_up() { (void)write({.has_left = true, .handle = {}, .life = {}}); }

Result<bool> Members::others_wait() {
  ACCORD_ASSIGN_OR_RETURN(const bool changed, has_changed());
  if (!changed && !others_wait_ && !is_undecided_) return false;
  error_ = {};
  is_undecided_ = false;
  if (changed) ACCORD_RETURN_IF_ERROR(read_news());
  others_wait_ = has_place_for_more(situation());
  if (!error_.ok()) return error_;
  return others_wait_;
}

Status Members::finish() {
  ACCORD_RETURN_IF_ERROR(store_.set("finished", ""));
  return store_.raise("changes", 1).status();
}

void Members::close() {
  is_closed_ = true;
  leave_if_closed();
}

void Members::leave_if_closed() {
  // Otherwise the thread that waits for a round does it.
  const std::unique_lock lock(running_, std::try_to_lock);
  if (lock && is_closed_) leave();
}

}  // namespace accord::elastic
