#include "comm/nccl/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
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
/// Time for ncclCommRevoke() to stop pending operations.
constexpr std::chrono::seconds kRevokeTimeout(2);

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
/// the same kind: a transient one if a rank has one, else kNotFound or kUnsupported if a rank has no library, else
/// kMismatch if they differ.
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
  if (!failure.ok()) mine = json{{"error", failure.message().substr(0, kMaxText / 2)}, {"lacks", !library.ok()}};
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
      return Status(lacks ? StatusCode::kNotFound : StatusCode::kPeerLost,
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
    : group_(group),
      library_(nccl::library()),
      runtime_(runtime),
      device_(device),
      whole_(lent),
      is_lent_(lent != nullptr) {}

NcclBackend::~NcclBackend() {
  const device::CurrentDevice current(runtime_, device_);
  const Deadline deadline = Deadline::in(kEndTimeout);
  {
    const std::lock_guard lock(calls_);
    registry_->end(aborted_ ? nccl::Registry::End::kAborted : nccl::Registry::End::kDestroyed);
    if (is_revoked_) (void)library().call.CommAbort(whole_);
  }
  if (!aborted_) {
    const std::lock_guard lock(calls_);
    // All of them begin to end before this rank waits for one: peers may wait for them in another order.
    for (nccl::Communicator* const communicator : communicators()) (void)library().call.CommFinalize(communicator);
    for (nccl::Communicator* const communicator : communicators()) {
      const bool quiet = wait_until_idle(communicator, "CommFinalize", deadline).ok();
      (void)(quiet ? library().call.CommDestroy(communicator) : library().call.CommAbort(communicator));
    }
  }
  registry_->unfinished.clear();
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

std::vector<nccl::Communicator*> NcclBackend::communicators() const {
  std::vector<nccl::Communicator*> all;
  if (whole_ != nullptr && !is_lent_) all.push_back(whole_);
  for (const auto& [peer, pair] : pairs_)
    if (pair.communicator != nullptr) all.push_back(pair.communicator);
  return all;
}

Status NcclBackend::check(const Call& call) const {
  return library_.ok() ? nccl::check_reduction(call, library().version, group_.size()) : Status();
}

Status NcclBackend::agree(std::span<const Call> calls, Deadline deadline) {
  const bool all_ranks =
      std::any_of(calls.begin(), calls.end(), [](const Call& call) { return call.direction == Direction::kNone; });
  if (!all_ranks) return library_.status();
  if (id_ || (whole_ != nullptr && !is_lent_)) return {};
  ACCORD_ASSIGN_OR_RETURN(id_, comm::agree(group_, library_, is_lent_, deadline));
  return {};
}

nccl::Member NcclBackend::whole() const { return member(whole_, group_.rank(), group_.size()); }

nccl::Config NcclBackend::config() const {
  const GroupHints& hints = group_.options().hints;
  nccl::Config config;
  config.blocking = 0;
  config.cga_cluster_size = hints.cga_cluster_size.value_or(nccl::Config::kUnset);
  config.min_ctas = hints.min_ctas.value_or(nccl::Config::kUnset);
  config.max_ctas = hints.max_ctas.value_or(nccl::Config::kUnset);
  config.net_name = hints.net_name ? hints.net_name->c_str() : nullptr;
  return config;
}

Result<nccl::Communicator*> NcclBackend::connect(const nccl::UniqueId& id, Rank rank, int size) {
  nccl::Config config = this->config();
  nccl::Communicator*& communicator = created_.emplace_back(nullptr);
  const int code = library().call.CommInitRankConfig(&communicator, size, id, rank, &config);
  if (code != nccl::kSuccess && code != nccl::kInProgress) return library().failure("CommInitRankConfig", code);
  return std::atomic_ref(communicator).load(std::memory_order_acquire);  // NCCL's thread writes it once more
}

Status NcclBackend::split(int color, int key, NcclBackend* child, Deadline deadline) {
  constexpr int kNoColor = -1;
  const std::lock_guard lock(calls_);
  if (aborted_) return Status(StatusCode::kAborted, "it was aborted");
  const device::CurrentDevice current(runtime_, device_);
  ACCORD_RETURN_IF_ERROR(current.status());
  nccl::Config config = child != nullptr ? child->config() : this->config();
  nccl::Communicator*& made = created_.emplace_back(nullptr);
  const int code = library().call.CommSplit(whole_, child != nullptr ? color : kNoColor, key, &made, &config);
  if (code != nccl::kSuccess && code != nccl::kInProgress) return library().failure("CommSplit", code);
  Status parted = wait_until_idle(whole_, "CommSplit", deadline);
  if (child == nullptr) return parted;
  {
    const std::lock_guard its_lock(child->calls_);
    child->whole_ = made;
    if (parted.ok()) parted = wait_until_idle(made, "CommSplit", deadline);
  }
  if (!parted.ok()) child->abort();
  return parted;
}

Status NcclBackend::shrink(std::span<const Rank> lost, NcclBackend& child, Deadline deadline) {
  const std::lock_guard lock(calls_);
  if (!can_shrink()) return Status(StatusCode::kAborted, "it was aborted");
  const device::CurrentDevice current(runtime_, device_);
  ACCORD_RETURN_IF_ERROR(current.status());
  std::vector<int> excluded(lost.begin(), lost.end());
  nccl::Config config = child.config();
  nccl::Communicator*& made = created_.emplace_back(nullptr);
  const int code = library().call.CommShrink(whole_, excluded.data(), static_cast<int>(excluded.size()), &made, &config,
                                             is_revoked_ ? nccl::kShrinkAbort : nccl::kShrinkDefault);
  if (code != nccl::kSuccess && code != nccl::kInProgress) return library().failure("CommShrink", code);
  const std::lock_guard its_lock(child.calls_);
  // wait_until_idle() of the child looks at the child's group: this group may have failed.
  ACCORD_RETURN_IF_ERROR(child.wait_until_idle(whole_, "CommShrink", deadline));
  child.whole_ = made;
  return child.wait_until_idle(made, "CommShrink", deadline);
}

Result<std::shared_ptr<RegisteredMemory>> NcclBackend::register_memory(void* memory, std::size_t bytes,
                                                                       Deadline deadline) {
  const std::lock_guard lock(calls_);
  if (aborted_) return Status(StatusCode::kAborted, "it was aborted");
  const device::CurrentDevice current(runtime_, device_);
  ACCORD_RETURN_IF_ERROR(current.status());
  if (Status connected = connect_whole(deadline); !connected.ok())
    return group_.state().fail(connected.with_context(group_.where("device_window")));
  registry_->communicator = whole_;
  return nccl::register_memory(
      {.group = group_,
       .library = library(),
       .runtime = runtime_,
       .device = device_,
       .registry = registry_,
       .wait_until_idle = [&](const char* function) { return wait_until_idle(whole_, function, deadline); },
       .deadline = deadline},
      memory, bytes);
}

Status NcclBackend::connect_whole(Deadline deadline) {
  if (whole_ != nullptr) return {};
  ACCORD_ASSIGN_OR_RETURN(whole_, connect(*id_, group_.rank(), group_.size()));
  return wait_until_idle(whole_, "CommInitRankConfig", deadline);
}

Status NcclBackend::wait_until_idle(nccl::Communicator* communicator, std::string_view function, Deadline deadline) {
  Waiter waiter(WaitPolicy::kYield);
  while (true) {
    int code = nccl::kSuccess;
    if (const int asked = library().call.CommGetAsyncError(communicator, &code); asked != nccl::kSuccess) code = asked;
    if (code == nccl::kSuccess) return {};
    if (code != nccl::kInProgress) return library().failure(function, code);
    if (!waiter.pause()) continue;
    if (aborted_) return Status(StatusCode::kAborted, fmt::format("nccl{} was aborted", function));
    if (group_.state().value() == CommunicatorState::kFailed ||
        (group_.state().value() == CommunicatorState::kReady && !group_.state().healthy()))
      return group_.state().examine_alarm(fmt::format("nccl{}", function));
    if (deadline.passed())
      return Status(StatusCode::kTimeout, fmt::format("nccl{} did not end in time: not all ranks called it", function));
  }
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
  const std::lock_guard lock(calls_);
  if (aborted_) return Status(StatusCode::kAborted, "it was aborted");
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
    Status put = nccl::put_collective(whole(), call, from, stream);
    if (put.ok()) put = wait_until_idle(whole_, "GroupEnd", deadline);
    // Also after a failure: the copy, and a part of the collective, may be in the stream.
    if (copies_.memory != nullptr && from == copies_.memory) {
      Status recorded = runtime_.record(copies_.read, device_, stream);
      if (put.ok()) put = std::move(recorded);
    }
    ACCORD_RETURN_IF_ERROR(put);
  }
  return messages.empty() ? Status() : enqueue_messages(messages, stream, deadline);
}

Status NcclBackend::asynchronous_error() {
  const std::unique_lock lock(calls_, std::try_to_lock);
  if (!lock.owns_lock() || aborted_) return {};
  const auto ask = [this](nccl::Communicator* communicator) -> Status {
    int code = nccl::kSuccess;
    if (const int asked = library().call.CommGetAsyncError(communicator, &code); asked != nccl::kSuccess) code = asked;
    return code == nccl::kSuccess || code == nccl::kInProgress ? Status()
                                                               : library().failure("CommGetAsyncError", code);
  };
  if (whole_ != nullptr) ACCORD_RETURN_IF_ERROR(ask(whole_));
  for (const auto& [peer, pair] : pairs_) {
    if (pair.communicator == nullptr) continue;
    if (Status status = ask(pair.communicator); !status.ok()) return Status(status.code(), status.message(), {peer});
  }
  return {};
}

bool NcclBackend::revoke(nccl::Communicator* communicator) {
  if (library().call.CommRevoke == nullptr || library().call.CommShrink == nullptr) return false;
  const int begun = library().call.CommRevoke(communicator, 0);
  if (begun != nccl::kSuccess && begun != nccl::kInProgress) return false;
  const Deadline deadline = Deadline::in(kRevokeTimeout);
  Waiter waiter(WaitPolicy::kYield);
  for (int code = nccl::kInProgress; code == nccl::kInProgress; (void)waiter.pause()) {
    if (library().call.CommGetAsyncError(communicator, &code) != nccl::kSuccess || deadline.passed()) return false;
  }
  return true;
}

void NcclBackend::abort() {
  if (aborted_.exchange(true)) return;
  const std::lock_guard lock(calls_);  // a thread that holds it sees aborted_ and leaves
  const device::CurrentDevice current(runtime_, device_);
  registry_->end(nccl::Registry::End::kAborted);
  for (nccl::Communicator* const communicator : communicators()) {
    if (communicator == whole_ && revoke(whole_)) {
      is_revoked_ = true;
    } else {
      (void)library().call.CommAbort(communicator);
    }
  }
  registry_->unfinished.clear();
}

}  // namespace accord::comm
