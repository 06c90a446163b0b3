// The public interface of a Group, and how groups are joined and split.
#include "accord/communicator.hpp"

#include <fmt/format.h>

#include "base/config.hpp"
#include "comm/environment.hpp"
#include "comm/formation/formation.hpp"
#include "comm/group.hpp"
#include "comm/membership/bootstrap.hpp"
#include "comm/membership/grow.hpp"
#include "comm/membership/shrink.hpp"
#include "comm/membership/split.hpp"
#include "comm/prepared_calls.hpp"
#include "comm/receive_any.hpp"
#include "comm/window/shared_window.hpp"

namespace accord {
namespace {

Result<Communicator> meet(std::shared_ptr<Store> store, const comm::JoinRequest& request) {
  if (Status refused = comm::check(request); !refused.ok()) {
    comm::decline(request, std::move(store), refused);
    return refused;
  }
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> group,
                          comm::join(request, comm::store_exchange(std::move(store), request)));
  return Communicator(std::move(group));
}

/// Returns nullopt if a split of `parent` created no group for this rank.
Result<std::optional<Communicator>> part(comm::Group& parent, Result<std::shared_ptr<comm::Group>> made) {
  if (!made.ok()) return made.status();
  if (*made == nullptr) return std::optional<Communicator>();
  parent.add_made(*made);
  return std::optional(Communicator(std::move(*made)));
}

}  // namespace

Communicator::Communicator(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

Result<Communicator> Communicator::create(std::shared_ptr<Store> store, Rank rank, int size,
                                          CommunicatorOptions options) {
  if (store == nullptr)
    return Status(StatusCode::kInvalidArgument, fmt::format("creating group \"{}\": the store is null", options.name));
  Result<comm::GroupOptions> resolved = comm::resolve(options);
  if (!resolved.ok()) {
    comm::decline({.rank = rank, .size = size, .options = {.name = options.name}}, std::move(store), resolved.status());
    return resolved.status();
  }
  const Deadline deadline = Deadline::in(resolved->timeout);
  return meet(std::move(store), {.rank = rank, .size = size, .options = std::move(*resolved), .deadline = deadline});
}

Result<Communicator> Communicator::from_environment(const CommunicatorOptions& options) {
  Result<comm::GroupOptions> resolved = comm::resolve(options);
  const Result<comm::JobPlace> job = comm::job_place(process_environment());
  if (!resolved.ok()) {
    if (job.ok()) comm::decline_job(*job, options.name, resolved.status());
    return resolved.status();
  }
  ACCORD_RETURN_IF_ERROR(job.status());
  const Deadline deadline = Deadline::in(resolved->timeout);
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, comm::job_store(*job, deadline));
  return meet(std::move(store),
              {.rank = job->rank, .size = job->size, .options = std::move(*resolved), .deadline = deadline});
}

Result<Communicator> Communicator::alone(CommunicatorOptions options) {
  return create(make_memory_store(), 0, 1, std::move(options));
}

Rank Communicator::rank() const { return group_->rank(); }
int Communicator::size() const { return group_->size(); }
const std::string& Communicator::name() const { return group_->options().name; }
CommunicatorState Communicator::state() const { return group_->state().value(); }
Status Communicator::status() const { return group_->state().status(); }
std::vector<Rank> Communicator::gone() const { return group_->gone(); }

Status Communicator::run(const Call& call, const CallOptions& options) { return group_->run(call, options); }
Work Communicator::start(const Call& call, const CallOptions& options) { return group_->start(call, options); }
Status Communicator::run(std::span<const Call> calls, const CallOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const comm::PreparedCalls prepared, comm::PreparedCalls::make(group_, calls, options));
  return prepared.run();
}
Work Communicator::start(std::span<const Call> calls, const CallOptions& options) {
  const Result<comm::PreparedCalls> prepared = comm::PreparedCalls::make(group_, calls, options);
  return prepared.ok() ? Work(prepared->start()) : Work(prepared.status());
}

Result<Rank> Communicator::recv_any(Buffer buffer, std::int32_t tag, const CallOptions& options) {
  return comm::receive_any(*group_, buffer, tag, options);
}

Result<Prepared> Communicator::prepare(const Call& call, const CallOptions& options) {
  return prepare(std::span(&call, 1), options);
}
Result<Prepared> Communicator::prepare(std::span<const Call> calls, const CallOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(comm::PreparedCalls prepared, comm::PreparedCalls::make(group_, calls, options));
  return Prepared(std::make_shared<const comm::PreparedCalls>(std::move(prepared)));
}
Status Prepared::run() { return calls_->run(); }
Work Prepared::start() { return Work(calls_->start()); }

Result<std::optional<Communicator>> Communicator::split(int color, int key, CommunicatorOptions options) {
  return part(*group_, comm::split_by_color(*group_, color, key, std::move(options)));
}

Result<std::optional<Communicator>> Communicator::split_ranks(std::span<const Rank> ranks,
                                                              CommunicatorOptions options) {
  return part(*group_, comm::split_by_ranks(*group_, ranks, std::move(options)));
}

Result<Communicator> Communicator::grow(const std::shared_ptr<Store>& store, int added, CommunicatorOptions options) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> group, comm::grow(*group_, store, added, std::move(options)));
  return Communicator(std::move(group));
}

Result<Communicator> Communicator::join(const std::shared_ptr<Store>& store, CommunicatorOptions options) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> group, comm::join_growing(store, std::move(options)));
  return Communicator(std::move(group));
}

Result<Communicator> Communicator::shrink(std::string name, const CallOptions& options) {
  const Duration patience = options.timeout.value_or(group_->options().timeout);
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> group, comm::shrink(*group_, std::move(name), patience));
  return Communicator(std::move(group));
}

Result<std::string> Communicator::handle() const {
  ACCORD_ASSIGN_OR_RETURN(const std::shared_lock<std::shared_mutex> open, group_->keep_open("handle"));
  return group_->formation_point().handle();
}

Result<Communicator> Communicator::reconfigure(std::string_view uuid, std::span<const std::string> handles,
                                               const ReconfigureOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> group, comm::reconfigure(*group_, uuid, handles, options));
  return Communicator(std::move(group));
}

Result<Window> Communicator::window(std::size_t bytes, const CallOptions& options) {
  const Duration timeout = options.timeout.value_or(group_->options().timeout);
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::SharedWindow> window, comm::SharedWindow::open(group_, bytes, timeout));
  return Window(std::move(window));
}

void Communicator::abort(std::string_view reason) { group_->abort(reason); }
void Communicator::close() { group_->close(); }

Result<std::string> Communicator::dump(const std::string& directory) const {
  return flight::write_dump(group_->recorder().read(), directory);
}
Counters Communicator::counters() const { return group_->recorder().counters(); }

}  // namespace accord
