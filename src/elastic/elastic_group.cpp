#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "accord/elastic.hpp"
#include "base/config.hpp"
#include "comm/internal.hpp"
#include "elastic/members.hpp"

namespace accord {
namespace {

/// Attempts to form a group of processes that disagree. Two processes may publish a round at the same time, which
/// looks alike.
constexpr int kMismatches = 3;

Status no_group(std::string_view call, const ElasticOptions& options) {
  return Status(StatusCode::kWrongState,
                fmt::format("elastic group \"{}\": {}: form() has not formed a group yet", options.name, call));
}

}  // namespace

Status elastic::check(const ElasticOptions& options) {
  if (options.min_ranks >= 1 && options.min_ranks <= options.max_ranks) return {};
  return Status(StatusCode::kInvalidArgument,
                fmt::format("elastic group \"{}\": {} to {} ranks are impossible; expected 1 <= minimum <= maximum",
                            options.name, options.min_ranks, options.max_ranks));
}

struct ElasticGroup::State {
  State(ElasticOptions options_, Duration timeout_, Communicator alone_, std::unique_ptr<elastic::Members> members_)
      : options(std::move(options_)), timeout(timeout_), alone(std::move(alone_)), members(std::move(members_)) {}

  /// Leaves the current communicator.
  void leave();
  /// This process takes part in no group that was agreed before. Returns `why`, or kAborted after close().
  Status give_up(const Status& why);
  Result<Communicator> reconfigure(const elastic::Round& round);

  ElasticOptions options;
  Duration timeout;
  Communicator alone;  ///< has the handles of this process
  std::unique_ptr<elastic::Members> members;
  std::optional<Communicator> current;
  std::mutex mutex;  ///< of `alone` and `current`, which close() uses from another thread
};

ElasticGroup::ElasticGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}
ElasticGroup::ElasticGroup(ElasticGroup&&) noexcept = default;
ElasticGroup& ElasticGroup::operator=(ElasticGroup&&) noexcept = default;
ElasticGroup::~ElasticGroup() {
  if (state_ != nullptr) close();
}

Result<ElasticGroup> ElasticGroup::open(std::shared_ptr<Store> store, ElasticOptions options) {
  if (store == nullptr)
    return Status(StatusCode::kInvalidArgument, fmt::format("elastic group \"{}\": the store is null", options.name));
  ACCORD_RETURN_IF_ERROR(elastic::check(options));
  options.communicator.name = options.name;
  ACCORD_RETURN_IF_ERROR(config().status());
  const Duration timeout = options.form_timeout.value_or(options.communicator.timeout.value_or(config()->timeout));
  ACCORD_ASSIGN_OR_RETURN(Communicator alone, Communicator::alone(options.communicator));
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<elastic::Members> members, elastic::Members::open(std::move(store), options));
  return ElasticGroup(std::make_unique<State>(std::move(options), timeout, std::move(alone), std::move(members)));
}

Result<ElasticGroup> ElasticGroup::from_environment(ElasticOptions options) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, elastic::use_environment(options));
  return open(std::move(store), std::move(options));
}

Result<std::shared_ptr<Store>> elastic::use_environment(ElasticOptions& options) {
  ACCORD_RETURN_IF_ERROR(config().status());
  if (!config()->elastic)
    return Status(StatusCode::kInvalidArgument,
                  "the environment variable ACCORD_ELASTIC is missing; accord run --elastic MIN:MAX sets it");
  options.min_ranks = config()->elastic->least;
  options.max_ranks = config()->elastic->most;
  ACCORD_ASSIGN_OR_RETURN(const comm::JobPlace place, comm::job_place(process_environment()));
  if (place.port == 0)
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("elastic group \"{}\": no launcher has started this process, so it has no store in common "
                    "with others; use accord run --elastic, or pass a store",
                    options.name));
  return comm::job_store(place, Deadline::in(options.communicator.timeout.value_or(config()->timeout)));
}

void ElasticGroup::State::leave() {
  std::optional<Communicator> former;
  {
    const std::lock_guard lock(mutex);
    former.swap(current);
  }
  if (!former) return;
  former->abort("a rank left it to form the next group");
  former->close();
}

Status ElasticGroup::State::give_up(const Status& why) {
  members->give_up();
  const std::lock_guard lock(mutex);
  if (members->is_closed()) return Status(StatusCode::kAborted, members->where() + " was closed");
  alone.close();  // with it the handle, for which a group may wait that was agreed at this moment
  ACCORD_ASSIGN_OR_RETURN(alone, Communicator::alone(options.communicator));
  return why;
}

Result<Communicator> ElasticGroup::State::reconfigure(const elastic::Round& round) {
  return alone.reconfigure(round.uuid, round.handles, {.timeout = timeout});
}

Result<std::optional<Communicator>> ElasticGroup::form() {
  State& state = *state_;
  state.leave();
  for (int mismatches = 0;;) {
    const Result<std::string> handle = state.alone.handle();
    if (!handle.ok()) return state.give_up(handle.status());
    Result<std::optional<elastic::Round>> round = state.members->next_round(*handle, state.timeout);
    if (!round.ok()) return state.give_up(round.status());
    if (!*round) return std::optional<Communicator>();
    Result<Communicator> made = state.reconfigure(**round);
    if (made.ok()) {
      const std::lock_guard lock(state.mutex);
      state.current = *made;
      if (state.members->is_closed()) state.current->close();
      return std::optional(*std::move(made));
    }
    const StatusCode code = made.status().code();
    const bool may_try_again = code == StatusCode::kPeerLost || code == StatusCode::kTimeout ||
                               (code == StatusCode::kMismatch && ++mismatches < kMismatches);
    if (!may_try_again) return state.give_up(made.status());
    if (code == StatusCode::kTimeout) state.members->report(made.status().ranks());
  }
}

Result<bool> ElasticGroup::others_wait() {
  if (!state_->current) return no_group("others_wait", state_->options);
  constexpr std::int8_t kFailed = -1;
  std::int8_t answer = 0;
  Status failure;
  if (state_->current->rank() == 0) {
    const Result<bool> wait = state_->members->others_wait();
    failure = wait.status();
    answer = wait.ok() ? static_cast<std::int8_t>(*wait) : kFailed;
  }
  ACCORD_RETURN_IF_ERROR(state_->current->broadcast(Buffer{&answer, 1, DType::kInt8}, 0));
  if (answer != kFailed) return answer == 1;
  return failure.ok()
             ? Status(StatusCode::kIo, fmt::format("{}: rank 0 cannot use the store", state_->members->where()), {0})
             : failure;
}

Result<Rank> ElasticGroup::most_advanced(std::int64_t steps) {
  if (!state_->current) return no_group("most_advanced", state_->options);
  std::vector<std::int64_t> all(static_cast<std::size_t>(state_->current->size()));
  ACCORD_RETURN_IF_ERROR(state_->current->all_gather(ConstBuffer(&steps, 1, DType::kInt64),
                                                     Buffer{all.data(), all.size(), DType::kInt64}));
  return static_cast<Rank>(std::max_element(all.begin(), all.end()) - all.begin());
}

Status ElasticGroup::finish() { return state_->members->finish(); }

void ElasticGroup::close() {
  state_->members->close();
  const std::lock_guard lock(state_->mutex);
  if (state_->current) state_->current->close();
  state_->alone.close();
}

std::int64_t ElasticGroup::round() const { return state_->members->round(); }

}  // namespace accord
