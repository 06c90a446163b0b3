// Rank 0 calls the other ranks only to see that they live and mean the same formation; texts travel over the calls that
// they make to it. A call that nobody has accepted yet ends as well when the process ends that listens for it.
//
// A hello says which formation the caller means. A caller with another uuid is told so and the meeting goes on: it may
// have come from an attempt that failed. A caller with this uuid and other handles is a mistake of the program, and
// fails the meeting on both sides.
#include "comm/formation/meeting.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/hash.hpp"
#include "base/interruption.hpp"
#include "base/text.hpp"

namespace accord::comm {
namespace {

using Json = nlohmann::json;
using transport::tcp::IncomingCall;
using transport::tcp::OutgoingCall;

constexpr int kProtocol = 1;
constexpr int kPollMilliseconds = 20;
constexpr std::size_t kMaxStrangers = 1024;
constexpr std::size_t kMaxRejected = 64;
constexpr std::size_t kMaxNamed = 4;
constexpr Duration kHelloTimeout = std::chrono::seconds(5);
/// A rank that leaves a meeting waits this long for the others to read why, but hardly beyond the call's deadline.
constexpr Duration kFarewellTimeout = std::chrono::seconds(1);
constexpr Duration kLateFarewellTimeout = std::chrono::milliseconds(100);
/// Rank 0 decides that a rank is late and says so; the others give it this much longer before they decide themselves.
constexpr Duration kVerdictTimeout = std::chrono::milliseconds(500);

struct Greeting {
  int protocol = 0;
  std::string to;
  std::string from;
  std::string uuid;  ///< a hash of it
  std::string digest;
  Rank rank = -1;
  int size = 0;
};

std::optional<Greeting> parse_greeting(const std::string& text) {
  const Json object = Json::parse(text, nullptr, false);
  try {
    return Greeting{.protocol = object.at("protocol").get<int>(),
                    .to = object.at("to").get<std::string>(),
                    .from = object.at("from").get<std::string>(),
                    .uuid = object.at("uuid").get<std::string>(),
                    .digest = object.at("digest").get<std::string>(),
                    .rank = object.at("rank").get<Rank>(),
                    .size = object.at("size").get<int>()};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::string hash_of(const std::string& text) { return hex64(xxh3(std::as_bytes(std::span(text)))); }

std::string digest_of(const FormationRequest& request) {
  std::string all = request.uuid;
  for (const Handle& handle : request.handles) all += '\n' + to_text(handle);
  return hash_of(all);
}

Deadline earlier(Deadline a, Deadline b) { return b.at() < a.at() ? b : a; }

std::size_t limit_of(const FormationRequest& request) {
  constexpr std::size_t kRoom = std::size_t{64} << 10;
  return kRoom + request.handles.size() * 2 * kMaxText;
}

}  // namespace

FormationMeeting::FormationMeeting(FormationRequest request, HandleListener listener)
    : request_(std::move(request)),
      listener_(std::move(listener)),
      digest_(digest_of(request_)),
      message_limit_(limit_of(request_)),
      protocol_(request_.rank, static_cast<int>(request_.handles.size())) {
  const std::string& here = listener_.handle.host;
  for (Rank r = 0; r < size(); ++r) {
    if (r == request_.rank || (r != 0 && request_.rank != 0)) continue;
    std::vector<std::string> addresses = request_.handles[r].addresses;
    if (request_.handles[r].host == here) addresses = {"127.0.0.1"};
    calls_.emplace(r, OutgoingCall(std::move(addresses), request_.handles[r].port, hello_to(r)));
  }
}

FormationMeeting::~FormationMeeting() {
  if (protocol_.failure().ok()) return;
  const Duration left = std::max(request_.deadline.remaining(), kLateFarewellTimeout);
  const Deadline soon = Deadline::in(std::min(kFarewellTimeout, left));
  calls_.clear();
  send_messages();
  bool is_closing = false;
  while (!soon.passed()) {
    if (!is_closing) accept_callers();
    bool is_flushed = true, is_read = true;
    for_each_connection([&](Connection& connection) {
      connection.advance();
      while (connection.next()) {
      }
      is_flushed = is_flushed && (connection.is_flushed() || connection.has_ended());
      is_read = is_read && connection.has_ended();
    });
    if (is_closing && is_read) return;
    if (!is_closing && is_flushed && has_heard_all()) {
      is_closing = true;
      listener_.socket.reset();
      strangers_.clear();
      for_each_connection([](Connection& connection) { connection.close_outgoing(); });
    } else {
      wait();
    }
  }
}

bool FormationMeeting::has_heard_all() const {
  if (request_.rank != 0) return true;
  const std::vector<Rank>& lost = protocol_.failure().ranks();
  for (Rank r = 1; r < size(); ++r)
    if (!callers_.contains(r) && std::find(lost.begin(), lost.end(), r) == lost.end()) return false;
  return true;
}

template <typename Use>
void FormationMeeting::for_each_connection(Use use) {
  for (auto& [rank, connection] : called_) use(connection);
  for (auto& [rank, connection] : callers_) use(connection);
  for (Connection& connection : rejected_) use(connection);
}

std::string FormationMeeting::named(Rank rank) const {
  return fmt::format("rank {} ({})", rank, describe(request_.handles[rank]));
}

std::string FormationMeeting::hello_to(Rank rank) const {
  const Json object = {{"protocol", kProtocol},
                       {"to", request_.handles[rank].key},
                       {"from", listener_.handle.key},
                       {"uuid", hash_of(request_.uuid)},
                       {"digest", digest_},
                       {"rank", request_.rank},
                       {"size", size()}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Status FormationMeeting::exchange(const std::string& mine, const OnText& on_text) {
  if (protocol_.failure().ok()) protocol_.begin(mine);
  while (true) {
    advance();
    if (!protocol_.failure().ok()) return protocol_.failure();
    if (protocol_.texts() != nullptr) break;
    wait();
  }
  for (Rank r = 0; r < size(); ++r) {
    Status status = on_text(r, (*protocol_.texts())[static_cast<std::size_t>(r)]);
    if (status.ok()) continue;
    protocol_.fail(status);
    return status;
  }
  return {};
}

void FormationMeeting::finish() {
  const Deadline soon = Deadline::in(kFarewellTimeout);
  protocol_.finish();
  listener_.socket.reset();
  const auto all_sent = [&] {
    bool sent = true;
    for_each_connection(
        [&](const Connection& connection) { sent = sent && (connection.is_flushed() || connection.has_ended()); });
    return sent;
  };
  while (!all_sent() && !soon.passed()) {
    for_each_connection([](Connection& connection) { connection.advance(); });
    if (!all_sent()) wait();
  }
}

void FormationMeeting::advance() {
  accept_callers();
  advance_calls();
  read_messages();
  if (Interruption::is_wanted()) give_up(Status(StatusCode::kAborted, request_.where + ": the call was interrupted"));
  if (const Status wrong = request_.check(); !wrong.ok()) give_up(wrong);
  check_deadline();
  send_messages();
  // Only sends: what arrived here would not end the wait that may follow.
  for_each_connection([](Connection& connection) { connection.flush(); });
}

void FormationMeeting::give_up(const Status& why) {
  protocol_.fail(why, Status(StatusCode::kPeerLost,
                             fmt::format("{}: {} gave up: {}", request_.where, named(request_.rank), why.message()),
                             {request_.rank}));
}

void FormationMeeting::accept_callers() {
  hear_strangers();
  while (true) {
    Result<UniqueFd> socket = transport::tcp::accept_call(listener_.socket.get());
    if (socket.ok() && !socket->valid()) break;
    if (!socket.ok() && strangers_.empty()) return protocol_.fail(socket.status().with_context(request_.where));
    // Callers say hello at once, so the oldest of those that have not is the least likely to be a rank.
    if (!socket.ok() || strangers_.size() == kMaxStrangers) strangers_.erase(strangers_.begin());
    if (!socket.ok()) continue;
    strangers_.push_back({IncomingCall(std::move(*socket)), Deadline::in(kHelloTimeout)});
    if (strangers_.size() == kMaxStrangers) hear_strangers();
  }
  hear_strangers();
}

void FormationMeeting::hear_strangers() {
  std::vector<Stranger> rest;
  for (Stranger& stranger : std::exchange(strangers_, {})) {
    if (!stranger.call.advance()) continue;
    if (stranger.call.has_hello()) {
      receive(std::move(stranger.call));
    } else if (!stranger.deadline.passed()) {
      rest.push_back(std::move(stranger));
    }
  }
  strangers_ = std::move(rest);
}

void FormationMeeting::receive(IncomingCall call) {
  const std::optional<Greeting> hello = parse_greeting(call.hello());
  if (!hello || hello->to != listener_.handle.key) return;  // a stranger
  if (hello->protocol != kProtocol || hello->uuid != hash_of(request_.uuid))
    return reject(std::move(call),
                  Status(StatusCode::kMismatch, fmt::format("{}: {} takes part in another one, {}", request_.where,
                                                            describe(listener_.handle), quoted_text(request_.uuid))));
  const auto from = std::find_if(request_.handles.begin(), request_.handles.end(),
                                 [&](const Handle& handle) { return handle.key == hello->from; });
  const bool is_listed = from != request_.handles.end();
  const auto rank = static_cast<Rank>(from - request_.handles.begin());
  if (hello->digest != digest_) {
    const std::string who = is_listed ? named(rank) : "a rank that this rank does not list";
    const Status differs(StatusCode::kMismatch,
                         fmt::format("{}: {} passed other handles ({}) than {} ({}), or in another order",
                                     request_.where, who, hello->size, describe(listener_.handle), size()),
                         is_listed ? std::vector{rank} : std::vector<Rank>());
    reject(std::move(call), Status(differs.code(), differs.message()));
    return protocol_.fail(differs);
  }
  const bool is_due = is_listed && hello->rank == rank && (rank == 0) != (request_.rank == 0);
  if (!is_due || callers_.contains(rank)) return;
  call.acknowledge();
  Connection& connection = callers_.emplace(rank, Connection(call.release_socket(), message_limit_)).first->second;
  if (!protocol_.failure().ok())  // the rank is late, and need not find out by itself
    connection.send(bytes_of({.kind = FormationMessage::Kind::kFailed, .failure = protocol_.told_failure()}));
  if (request_.rank != 0) return;
  calls_.erase(rank);
  called_.erase(rank);
}

void FormationMeeting::reject(IncomingCall call, const Status& why) {
  call.acknowledge();
  if (rejected_.size() == kMaxRejected) rejected_.erase(rejected_.begin());
  Connection& connection = rejected_.emplace_back(call.release_socket(), message_limit_);
  connection.send(bytes_of({.kind = FormationMessage::Kind::kFailed, .failure = why}));
  connection.advance();
}

void FormationMeeting::advance_calls() {
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    auto& [rank, call] = *entry;
    if (const Status status = call.advance(); !status.ok()) return protocol_.fail(status.with_context(request_.where));
    if (call.refused()) {
      lose(rank, "has ended, or its handle has been used");
    } else if (call.is_acknowledged()) {
      Connection& connection = called_.emplace(rank, Connection(call.release_socket(), message_limit_)).first->second;
      if (rank == 0)
        for (FormationMessage& message : std::exchange(early_, {})) connection.send(bytes_of(std::move(message)));
    } else {
      ++entry;
      continue;
    }
    entry = calls_.erase(entry);
  }
}

void FormationMeeting::read_messages() {
  // Rank 0's own call says nothing that its answer to this rank's call does not.
  for (auto& [rank, connection] : callers_) read_from(rank, connection, request_.rank == 0);
  for (auto& [rank, connection] : called_) read_from(rank, connection, true);
  std::erase_if(rejected_, [](Connection& connection) {
    connection.advance();
    connection.discard();
    return connection.has_ended();
  });
}

void FormationMeeting::read_from(Rank rank, Connection& connection, bool ends_meeting) {
  connection.advance();
  while (const std::optional<std::string> bytes = connection.next()) {
    Result<FormationMessage> message = decode_message(*bytes);
    if (!message.ok()) return lose(rank, "sent what is no message");
    if (message->kind == FormationMessage::Kind::kFailed) {
      std::vector<Rank> ranks = message->failure.ranks();
      std::erase_if(ranks, [&](Rank named) { return named < 0 || named >= size(); });
      // A rank that rejects the call does not know this rank's number for it.
      if (ranks.empty()) ranks = {rank};
      message->failure = Status(message->failure.code(), message->failure.message(), std::move(ranks));
    } else {
      // The first rank that can wait no longer ends the meeting, and rank 0 tells all why.
      request_.deadline = earlier(request_.deadline, Deadline::in(Duration(message->patience)));
    }
    protocol_.on_message(rank, *std::move(message));
  }
  if (connection.has_ended() && ends_meeting) lose(rank, "has ended");
}

void FormationMeeting::lose(Rank rank, std::string_view how) {
  protocol_.on_lost(rank,
                    Status(StatusCode::kPeerLost, fmt::format("{}: {} {}", request_.where, named(rank), how), {rank}));
}

void FormationMeeting::check_deadline() {
  if (!request_.deadline.passed() || protocol_.texts() != nullptr) return;
  const bool waits_for_verdict = request_.rank != 0 && called_.contains(0);
  if (waits_for_verdict && Clock::now() < request_.deadline.at() + kVerdictTimeout) return;
  const std::vector<Rank> late = request_.rank == 0 ? protocol_.missing() : std::vector<Rank>{0};
  std::vector<std::string> names(late.size());
  std::ranges::transform(late, names.begin(), [this](Rank r) { return named(r); });
  const std::string who = late.size() > kMaxNamed ? ranks_text(late) : fmt::format("{}", fmt::join(names, ", "));
  std::string text = fmt::format("{}: {} did not take part in time", request_.where, who);
  protocol_.fail(Status(StatusCode::kTimeout, std::move(text), late));
}

void FormationMeeting::send_messages() {
  for (const FormationProtocol::Outgoing& outgoing : protocol_.take_outgoing()) {
    const std::shared_ptr<const std::string> bytes = bytes_of(outgoing.message);
    const bool is_failure = outgoing.message.kind == FormationMessage::Kind::kFailed;
    for (const Rank rank : outgoing.to) {
      const auto caller = callers_.find(rank);
      const auto called = called_.find(rank);
      if (request_.rank == 0 && caller != callers_.end()) {
        caller->second.send(bytes);
      } else if (called != called_.end()) {
        called->second.send(bytes);
      } else if (!is_failure) {
        early_.push_back(outgoing.message);
      }
    }
  }
}

std::shared_ptr<const std::string> FormationMeeting::bytes_of(FormationMessage message) const {
  message.patience = request_.deadline.remaining().count();
  return std::make_shared<const std::string>(encode(message));
}

void FormationMeeting::wait() const {
  std::vector<pollfd> entries = {{listener_.socket.get(), POLLIN, 0}};
  for (const Stranger& stranger : strangers_) entries.push_back({stranger.call.fd(), POLLIN, 0});
  for (const auto& [rank, call] : calls_) entries.push_back({call.fd(), call.events(), 0});
  const auto add = [&](const Connection& connection) {
    if (!connection.has_ended()) entries.push_back({connection.fd(), connection.events(), 0});
  };
  for (const auto& [rank, connection] : called_) add(connection);
  for (const auto& [rank, connection] : callers_) add(connection);
  for (const Connection& connection : rejected_) add(connection);
  ::poll(entries.data(), entries.size(), kPollMilliseconds);
}

}  // namespace accord::comm
