// The public face of a Group: how one is joined and split.
#include "accord/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/config.hpp"
#include "comm/bootstrap.hpp"
#include "comm/environment.hpp"
#include "comm/group.hpp"
#include "comm/prepared_calls.hpp"
#include "comm/select_text.hpp"
#include "comm/shrink.hpp"
#include "comm/window/shared_window.hpp"

namespace accord {
namespace {

/// Fills from the environment what the caller left open.
Result<comm::GroupOptions> with_config(CommunicatorOptions options) {
  ACCORD_RETURN_IF_ERROR(config().status());
  ACCORD_ASSIGN_OR_RETURN(const comm::SelectText from_environment, comm::read_select(config()->select));
  ACCORD_ASSIGN_OR_RETURN(const comm::SelectText from_option, comm::read_select(options.select));
  std::string select = from_environment.table;
  if (!select.empty() && !from_option.table.empty()) select += ";";
  return comm::GroupOptions{.name = std::move(options.name),
                            .timeout = options.timeout.value_or(config()->timeout),
                            .transport = std::move(options.transport).value_or(config()->transport),
                            .select = select + from_option.table};
}

Result<Communicator> join(std::shared_ptr<Store> store, const comm::JoinRequest& request) {
  if (Status refused = comm::check(request); !refused.ok()) {
    comm::decline(request, std::move(store), refused);
    return refused;
  }
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> group,
                          comm::join(request, comm::store_exchange(std::move(store), request)));
  return Communicator(std::move(group));
}

/// An Exchange among the members of a group that is being split off `parent`: all ranks of the parent take part.
class SplitExchange {
 public:
  SplitExchange(Communicator& parent, std::vector<Rank> members, Deadline deadline)
      : parent_(parent), members_(std::move(members)), deadline_(deadline) {}

  Status operator()(std::string_view, const std::string& mine, const comm::Take& take) {
    std::vector<std::uint8_t> text(kTextBytes, 0);
    std::copy(mine.begin(), mine.end(), text.begin());
    std::vector<std::uint8_t> all(kTextBytes * parent_.size());
    ACCORD_RETURN_IF_ERROR(parent_.all_gather(ConstBuffer(text.data(), text.size(), DType::kUInt8),
                                              Buffer{all.data(), all.size(), DType::kUInt8},
                                              {.timeout = deadline_.remaining()}));
    for (Rank r = 0; r < static_cast<Rank>(members_.size()); ++r)
      ACCORD_RETURN_IF_ERROR(take(r, reinterpret_cast<const char*>(&all[members_[r] * kTextBytes])));
    return {};
  }

 private:
  static constexpr std::size_t kTextBytes = comm::kMostText + 1;  // with the zero that ends it

  Communicator& parent_;
  std::vector<Rank> members_;
  Deadline deadline_;
};

}  // namespace

Communicator::Communicator(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

Result<Communicator> Communicator::create(std::shared_ptr<Store> store, Rank rank, int size,
                                          CommunicatorOptions options) {
  if (store == nullptr) return Status(StatusCode::kInvalidArgument, "Communicator::create: the store is null");
  Result<comm::GroupOptions> resolved = with_config(options);
  if (!resolved.ok()) {
    comm::decline({.rank = rank, .size = size, .options = {.name = options.name}}, std::move(store), resolved.status());
    return resolved.status();
  }
  const Deadline deadline = Deadline::in(resolved->timeout);
  return join(std::move(store), {.rank = rank, .size = size, .options = std::move(*resolved), .deadline = deadline});
}

Result<Communicator> Communicator::from_environment(CommunicatorOptions options) {
  ACCORD_ASSIGN_OR_RETURN(comm::GroupOptions resolved, with_config(std::move(options)));
  const Deadline deadline = Deadline::in(resolved.timeout);
  ACCORD_ASSIGN_OR_RETURN(const comm::JobPlace job, comm::job_place(process_environment()));
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, comm::job_store(job, deadline));
  return join(std::move(store),
              {.rank = job.rank, .size = job.size, .options = std::move(resolved), .deadline = deadline});
}

Rank Communicator::rank() const { return group_->rank(); }
int Communicator::size() const { return group_->size(); }
const std::string& Communicator::name() const { return group_->options().name; }
CommunicatorState Communicator::state() const { return group_->state(); }
Status Communicator::status() const { return group_->status(); }

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

Result<Prepared> Communicator::prepare(const Call& call, const CallOptions& options) {
  return prepare(std::span(&call, 1), options);
}
Result<Prepared> Communicator::prepare(std::span<const Call> calls, const CallOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(comm::PreparedCalls prepared, comm::PreparedCalls::make(group_, calls, options));
  return Prepared(std::make_shared<const comm::PreparedCalls>(std::move(prepared)));
}
Status Prepared::run() { return calls_->run(); }
Work Prepared::start() { return Work(calls_->start()); }

Result<std::optional<Communicator>> Communicator::split(int color, int key, std::string name) {
  comm::JoinRequest request{.options = group_->options(), .deadline = Deadline::in(group_->options().timeout)};
  const std::int64_t mine[2] = {color, key};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
  ACCORD_RETURN_IF_ERROR(
      all_gather(ConstBuffer(mine, 2, DType::kInt64), Buffer{all.data(), all.size(), DType::kInt64}));
  std::vector<Rank> members;
  for (Rank r = 0; r < size(); ++r)
    if (color >= 0 && all[2 * r] == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](Rank a, Rank b) { return all[2 * a + 1] < all[2 * b + 1]; });
  SplitExchange exchange(*this, members, request.deadline);
  if (color < 0) {
    ACCORD_RETURN_IF_ERROR(exchange("address", "", {}));
    return std::optional<Communicator>();
  }
  std::vector<topology::Place> places;
  places.reserve(members.size());
  for (const Rank member : members) places.push_back(group_->topology().place(member));
  request.options.name = std::move(name);
  request.rank = static_cast<Rank>(std::find(members.begin(), members.end(), rank()) - members.begin());
  request.size = static_cast<int>(members.size());
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> group,
                          comm::connect(request, topology::Topology(std::move(places)), exchange));
  return std::optional<Communicator>(Communicator(std::move(group)));
}

Result<Communicator> Communicator::shrink(std::string name, const CallOptions& options) {
  const Duration patience = options.timeout.value_or(group_->options().timeout);
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::Group> group, comm::shrink(*group_, std::move(name), patience));
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
  return comm::flight::write_dump(group_->recorder().read(), directory);
}
Counters Communicator::counters() const { return group_->recorder().counters(); }

}  // namespace accord
