#include "comm/nccl/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/wait.hpp"
#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"
#include "comm/membership/gather_texts.hpp"

namespace accord::comm {
namespace {

using nlohmann::json;

constexpr std::chrono::seconds kEndTimeout(5);

std::string hex_of(const nccl::UniqueId& id) {
  std::string text;
  for (const char byte : id.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

bool read_hex(const std::string& text, nccl::UniqueId& id) {
  if (text.size() != 2 * sizeof(id.bytes)) return false;
  for (std::size_t i = 0; i < sizeof(id.bytes); ++i)
    id.bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return true;
}

/// A collective of the group. Returns rank 0's id if all ranks can continue. Otherwise all of them get an error of
/// the same kind: a transient one if a rank has one, else kNotFound if a rank has no library or kUnsupported if it
/// cannot be used, else kMismatch if they differ.
Result<nccl::UniqueId> agree(Group& group, const Result<const nccl::Library*>& library, bool is_lent,
                             Deadline deadline) {
  json mine;
  Status failure = library.status();
  if (failure.ok()) {
    mine["terms"] = fmt::format("{}NCCL {}", is_lent ? "a communicator that was lent, of " : "",
                                nccl::version_text((*library)->version));
    if (group.rank() == 0) {
      nccl::UniqueId id = {};
      if (const int code = (*library)->call.GetUniqueId(&id); code != nccl::kSuccess)
        failure = (*library)->failure("GetUniqueId", code);
      mine["id"] = hex_of(id);
    }
  }
  if (!failure.ok())
    mine = json{{"error", failure.message().substr(0, kMaxText / 2)},
                {"lacks", !library.ok()},
                {"is_found", failure.code() == StatusCode::kUnsupported}};
  const std::string text = mine.dump(-1, ' ', false, json::error_handler_t::replace);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, gather_texts(group, text, deadline.remaining()));
  std::vector<json> replies;
  for (const std::string& each : texts) {
    replies.push_back(json::parse(each, nullptr, false));
    if (!replies.back().is_object()) replies.back() = json{{"error", "its reply cannot be read"}};
  }
  for (const bool lacks : {false, true})
    for (Rank rank = 0; rank < group.size(); ++rank) {
      const json& its = replies[static_cast<std::size_t>(rank)];
      if (!its.contains("error") || its.value("lacks", false) != lacks) continue;
      if (rank == group.rank()) return failure;
      const StatusCode of_library = its.value("is_found", false) ? StatusCode::kUnsupported : StatusCode::kNotFound;
      return Status(lacks ? of_library : StatusCode::kPeerLost,
                    fmt::format("rank {} has no NCCL: {}", rank, its.value("error", "")), {rank});
    }
  for (Rank rank = 0; rank < group.size(); ++rank)
    if (const std::string terms = replies[static_cast<std::size_t>(rank)].value("terms", ""); terms != mine["terms"])
      return Status(
          StatusCode::kMismatch,
          fmt::format("rank {} has {}, rank {} has {}", rank, terms, group.rank(), mine["terms"].get<std::string>()),
          {rank});
  nccl::UniqueId id = {};
  if (!read_hex(replies[0].value("id", ""), id))
    return Status(StatusCode::kInternal, "the id that rank 0 sent cannot be read");
  return id;
}

}  // namespace

NcclBackend::NcclBackend(Group& group, device::Runtime& runtime, Device device, nccl::Communicator* lent)
    : group_(group), library_(nccl::library()), runtime_(runtime), device_(device) {
  if (lent != nullptr) whole_ = Connection::borrow(place(), lent);
}

NcclBackend::~NcclBackend() {
  const device::CurrentDevice current(runtime_, device_);
  const Deadline deadline = Deadline::in(kEndTimeout);
  const bool is_healthy = !is_aborted();
  if (registry_ != nullptr && is_healthy) registry_->deregister_all();
  const std::vector<std::shared_ptr<Connection>> all = connections();
  // All of them begin to end before this rank waits for one: peers may wait for them in another order.
  for (const auto& one : all) {
    if (is_healthy)
      one->begin_destroying();
    else
      one->end(Connection::Rest::kNone);
  }
  // An abort had its time, and needs nothing of this object. It may wait for kernels of the program.
  for (const auto& one : all)
    if (is_healthy) one->await_end(deadline);
  release_streams_and_copies(deadline);
}

void NcclBackend::release_streams_and_copies(Deadline deadline) {
  for (const auto& [peer, pair] : pairs_) {
    if (pair.event.handle == nullptr) continue;
    (void)runtime_.destroy_stream(device_, pair.stream);
    (void)runtime_.destroy_event(pair.event);
  }
  if (copies_.memory != nullptr) {
    // A failed call leaves its copy in a stream.
    const auto is_in_use = [this] {
      const Result<bool> read = runtime_.has_happened(copies_.read);
      return read.ok() && !*read;
    };
    Waiter waiter(WaitPolicy::kYield);
    while (is_in_use() && !deadline.passed()) (void)waiter.pause();
    (void)runtime_.release(device_, copies_.memory);
  }
  for (void* const copy : captured_copies_) (void)runtime_.release(device_, copy);
  if (copies_.read.handle != nullptr) (void)runtime_.destroy_event(copies_.read);
}

std::vector<std::shared_ptr<nccl::Connection>> NcclBackend::connections() const {
  const std::lock_guard lock(connections_mutex_);
  std::vector<std::shared_ptr<Connection>> all;
  if (whole_ != nullptr) all.push_back(whole_);
  for (const auto& [peer, pair] : pairs_)
    if (pair.connection != nullptr) all.push_back(pair.connection);
  return all;
}

bool NcclBackend::is_aborted() const {
  const std::lock_guard lock(connections_mutex_);
  return aborted_;
}

Status NcclBackend::check(const Call& call) const {
  return library_.ok() ? nccl::check_reduction(call, library().version, group_.size()) : Status();
}

Status NcclBackend::agree(std::span<const Call> calls, Deadline deadline) {
  const bool all_ranks =
      std::any_of(calls.begin(), calls.end(), [](const Call& call) { return call.direction == Direction::kNone; });
  if (!all_ranks) return agree_on_messages(calls, deadline);
  const bool is_lent = whole_ != nullptr && whole_->is_borrowed();
  if (id_ || (whole_ != nullptr && !is_lent)) return {};
  ACCORD_ASSIGN_OR_RETURN(id_, comm::agree(group_, library_, is_lent, deadline));
  return {};
}

nccl::Settings NcclBackend::settings() const {
  const GroupHints& hints = group_.options().hints;
  nccl::Settings settings;
  settings.values.blocking = 1;
  settings.values.cga_cluster_size = hints.cga_cluster_size.value_or(nccl::Config::kUnset);
  settings.values.min_ctas = hints.min_ctas.value_or(nccl::Config::kUnset);
  settings.values.max_ctas = hints.max_ctas.value_or(nccl::Config::kUnset);
  settings.net_name = hints.net_name.value_or("");
  return settings;
}

nccl::WaitCheck NcclBackend::check_until(Deadline deadline) const {
  return [this, deadline](std::string_view function) -> Status {
    if (is_aborted()) return Status(StatusCode::kAborted, fmt::format("nccl{} was aborted", function));
    if (group_.state().value() == CommunicatorState::kFailed ||
        (group_.state().value() == CommunicatorState::kReady && !group_.state().healthy()))
      return group_.state().examine_alarm(fmt::format("nccl{}", function));
    if (!deadline.passed()) return {};
    return Status(StatusCode::kTimeout, fmt::format("nccl{} did not end in time: not all ranks called it", function));
  };
}

Result<std::shared_ptr<nccl::Connection>> NcclBackend::add_connection(std::shared_ptr<Connection>& slot) {
  const std::lock_guard lock(connections_mutex_);
  if (aborted_) return Status(StatusCode::kAborted, "it was aborted");
  slot = Connection::create(place());
  if (captured_) slot->set_captured();
  return slot;
}

void NcclBackend::note_capture() {
  {
    const std::lock_guard lock(connections_mutex_);
    captured_ = true;
  }
  for (const auto& one : connections()) one->set_captured();
}

Status NcclBackend::connect_whole(Deadline deadline) {
  if (whole_ != nullptr) return {};
  ACCORD_ASSIGN_OR_RETURN(const auto made, add_connection(whole_));
  made->begin_connecting(*id_, group_.rank(), group_.size(), settings());
  return made->finish_connecting(check_until(deadline));
}

Result<const void*> NcclBackend::input_of(const Call& call, Stream stream) {
  const std::size_t bytes = call.input.bytes();
  if (call.collective != Collective::kAllToAll || call.input.data != call.output.data || bytes == 0)
    return call.input.data;
  ACCORD_ASSIGN_OR_RETURN(const bool captured, runtime_.is_capturing(device_, stream));
  if (captured) {  // its graph runs at any time, concurrently with calls that are not captured
    ACCORD_ASSIGN_OR_RETURN(void* const own, runtime_.allocate(device_, bytes));
    captured_copies_.push_back(own);
    ACCORD_RETURN_IF_ERROR(runtime_.copy(own, call.input.data, bytes, device_, stream));
    return own;
  }
  if (copies_.read.handle == nullptr) {
    ACCORD_ASSIGN_OR_RETURN(copies_.read, runtime_.create_event(device_));
  } else {
    ACCORD_RETURN_IF_ERROR(runtime_.wait(copies_.read, device_, stream));
  }
  if (copies_.bytes < bytes) {
    ACCORD_ASSIGN_OR_RETURN(void* const memory, runtime_.allocate(device_, bytes));
    if (copies_.memory != nullptr) {
      ACCORD_RETURN_IF_ERROR(runtime_.synchronize(device_, stream));
      ACCORD_RETURN_IF_ERROR(runtime_.release(device_, copies_.memory));
    }
    copies_ = {.memory = memory, .bytes = bytes, .read = copies_.read};
  }
  ACCORD_RETURN_IF_ERROR(runtime_.copy(copies_.memory, call.input.data, bytes, device_, stream));
  return copies_.memory;
}

Status NcclBackend::enqueue(std::span<const Call> calls, const exec::PlanEpilogue* epilogue, Stream stream,
                            Deadline deadline) {
  ACCORD_RETURN_IF_ERROR(enqueue_calls(calls, stream, deadline));
  return epilogue == nullptr ? Status() : epilogue->launch(runtime_, device_, stream);
}

Status NcclBackend::enqueue_calls(std::span<const Call> calls, Stream stream, Deadline deadline) {
  const device::CurrentDevice current(runtime_, device_);
  ACCORD_RETURN_IF_ERROR(current.status());
  std::vector<Call> messages;
  for (const Call& call : calls) {
    if (call.direction != Direction::kNone) {
      messages.push_back(call);
      continue;
    }
    ACCORD_RETURN_IF_ERROR(connect_whole(deadline));
    ACCORD_ASSIGN_OR_RETURN(const void* const from, input_of(call, stream));
    const nccl::WaitCheck check = check_until(deadline);
    nccl::Use use(*whole_, "GroupEnd", check);
    Status put = use.status();
    if (put.ok()) {
      put = nccl::put_collective({.use = use, .rank = group_.rank(), .size = group_.size()}, call, from, stream);
      if (put.ok()) put = use.settle("GroupEnd", check);
    }
    // Also after a failure: the copy, and a part of the collective, may be in the stream.
    if (copies_.memory != nullptr && from == copies_.memory) {
      Status recorded = runtime_.record(copies_.read, device_, stream);
      if (put.ok()) put = std::move(recorded);
    }
    ACCORD_RETURN_IF_ERROR(put);
  }
  return messages.empty() ? Status() : enqueue_messages(messages, stream, deadline);
}

}  // namespace accord::comm
