// The ranks are checked in each turn of the loop. If several have exited since the last check, their order is
// unknown. A rank that a signal killed is then blamed before one that exited with an error, because the error is
// often a consequence of the kill, and a lower rank before a higher one. The guards end the processes that ranks
// leave running. Once all of them are gone, the pipes are read to their end, for at most the grace period, because a
// process elsewhere may hold one.
#include "cli/launch/local_ranks.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <numeric>

#include "base/config.hpp"
#include "base/log.hpp"
#include "cli/diagnose/attach.hpp"
#include "cli/launch/cpu_binding.hpp"
#include "cli/launch/rank_environment.hpp"
#include "topology/cores.hpp"
#include "topology/topology.hpp"

namespace accord::cli {
namespace {

std::string host_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// Cores for each rank: its own if it is bound, otherwise an equal share of this node's cores.
int cores_of_rank(const std::vector<int>& processors, int ranks) {
  if (!processors.empty()) {
    const Result<topology::Cores> bound = topology::cores_of(processors);
    return bound.ok() ? bound->cores : 1;
  }
  const Result<topology::Place> place = topology::this_place();
  return std::max(1, (place.ok() ? place->cores : 1) / ranks);
}

}  // namespace

void LocalRanks::start(const Start& start) {
  start_ = start;
  failure_.reset();
  state_ = State::kRunning;
  is_finishing_ = false;
  const auto count = static_cast<std::size_t>(job_.ranks_here);
  starts_.assign(count, 0);
  is_awaited_.assign(count, false);
  Result<std::vector<std::vector<int>>> processors = processors_of_ranks(job_.binding, job_.ranks_here);
  if (!processors.ok()) return fail_to_start(0, processors.status().with_context("--bind"));
  processors_ = *std::move(processors);
  ranks_.reserve(count);
  for (int local_rank = 0; local_rank < job_.ranks_here; ++local_rank) {
    Result<RankProcess> rank = start_rank(local_rank, 0);
    if (!rank.ok()) return fail_to_start(local_rank, rank.status());
    ranks_.push_back(*std::move(rank));
  }
}

Result<RankProcess> LocalRanks::start_rank(int local_rank, int restart) {
  const int rank = start_.first_rank + local_rank;
  const std::vector<int>& processors = processors_[static_cast<std::size_t>(local_rank)];
  RankRequest request;
  request.program = job_.program;
  request.environment = rank_environment(job_, start_, local_rank, cores_of_rank(processors, job_.ranks_here));
  request.processors = processors;
  request.prefix = fmt::format("[{}] ", rank);
  request.gets_input = rank == 0 && restart == 0 && isatty(STDIN_FILENO) == 0;
  request.grace = job_.grace;
  if (!job_.log_directory.empty()) {
    const std::filesystem::path directory =
        std::filesystem::path(job_.log_directory) / fmt::format("restart_{}", start_.generation + restart);
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) return Status(StatusCode::kIo, fmt::format("--log-dir {}: {}", directory.string(), error.message()));
    request.log_file = (directory / fmt::format("rank_{}.log", rank)).string();
  }
  return RankProcess::start(request);
}

void LocalRanks::fail_to_start(int local_rank, const Status& why) {
  Failure failure;
  failure.node = start_.node;
  failure.rank = start_.first_rank + local_rank;
  failure.host = host_name();
  failure.exit_code = why.code() == StatusCode::kNotFound ? 127 : 126;  // as in shells
  failure.reason = why.message();
  failure_ = failure;
  end(SIGTERM);
}

void LocalRanks::end(int signal) {
  if (state_ != State::kRunning) return;
  dump();
  pass_on(signal);
  state_ = State::kEnding;
  deadline_ = Deadline::in(job_.grace);
}

// A rank that is told to end may do so before it has written its own record.
void LocalRanks::dump() const {
  if (!config().ok() || config()->dump_directory.empty()) return;
  std::vector<int> processes;
  for (const RankProcess& rank : ranks_)
    if (!rank.exit().has_value()) processes.push_back(rank.process());
  const Status status = write_dumps(attach_if_possible(processes), config()->dump_directory);
  if (!status.ok()) log().warn("the flight records of the ranks could not be written: {}", status.message());
}

void LocalRanks::kill() {
  if (state_ == State::kIdle) return;
  pass_on(SIGKILL);
  if (state_ != State::kDraining) state_ = State::kKilled;
  deadline_ = state_ == State::kDraining ? Deadline::in(Duration::zero()) : Deadline::never();
}

void LocalRanks::pass_on(int signal) const {
  for (const RankProcess& rank : ranks_) rank.send_signal(signal);
}

void LocalRanks::add_watches(Watches& watches) {
  for (std::vector<RankProcess>* ranks : {&ranks_, &former_})
    for (RankProcess& rank : *ranks) rank.add_watches(watches, console_);
}

void LocalRanks::advance() {
  if (state_ == State::kIdle) return;
  notice_exits();
  start_again();
  std::erase_if(former_, [&](RankProcess& rank) {
    if (!rank.output_open()) rank.reap();
    return !rank.output_open();
  });
  if (state_ == State::kEnding && deadline_.passed()) kill();
  const auto gone = [](const RankProcess& rank) { return rank.gone(); };
  if (state_ != State::kDraining && std::all_of(ranks_.begin(), ranks_.end(), gone)) {
    state_ = State::kDraining;
    deadline_ = Deadline::in(job_.grace);
  }
  if (state_ == State::kDraining) drain();
}

void LocalRanks::notice_exits() {
  std::optional<Failure> first;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].poll_exit()) continue;
    const Exit exit = *ranks_[i].exit();
    is_finishing_ = is_finishing_ || exit.clean();
    if (exit.clean() || can_go_on(i)) continue;
    if (first.has_value() && !(exit.signal != 0 && first->signal == 0)) continue;
    first = failure_of(i);
  }
  if (!first.has_value() || state_ != State::kRunning) return;
  failure_ = first;
  end(SIGTERM);
}

Failure LocalRanks::failure_of(std::size_t local_rank) const {
  const Exit exit = *ranks_[local_rank].exit();
  return {start_.node,
          start_.first_rank + static_cast<int>(local_rank),
          ranks_[local_rank].process(),
          host_name(),
          exit.code,
          exit.signal,
          ""};
}

bool LocalRanks::can_go_on(std::size_t local_rank) {
  if (!job_.elastic || state_ != State::kRunning) return false;
  const auto say = [&](const std::string& then) {
    console_.write_line(Stream::kError, "accord run: ", to_string(failure_of(local_rank)) + then);
    return true;
  };
  const int restarts = std::accumulate(starts_.begin(), starts_.end(), 0);
  if (restarts < job_.max_restarts && !is_finishing_) {
    is_awaited_[local_rank] = true;
    ++starts_[local_rank];
    return say(fmt::format("; starting it again ({} of {})", restarts + 1, job_.max_restarts));
  }
  int here = 0;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const std::optional<Exit>& exit = ranks_[i].exit();
    if (!exit.has_value() || exit->clean() || is_awaited_[i]) ++here;
  }
  const int others = start_.world_size - job_.ranks_here;
  return here > 0 && here + others >= job_.elastic->least && say("; going on without it");
}

void LocalRanks::start_again() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (state_ != State::kRunning || is_finishing_) return;
    if (!is_awaited_[i] || !ranks_[i].gone()) continue;
    is_awaited_[i] = false;
    former_.push_back(std::move(ranks_[i]));
    Result<RankProcess> rank = start_rank(static_cast<int>(i), starts_[i]);
    if (!rank.ok()) {
      ranks_.erase(ranks_.begin() + static_cast<std::ptrdiff_t>(i));
      return fail_to_start(static_cast<int>(i), rank.status());
    }
    ranks_[i] = *std::move(rank);
  }
}

void LocalRanks::drain() {
  // While the console's reader is slow, the pipes cannot be read; their contents must not be lost for that.
  if (console_.full(Stream::kOutput) || console_.full(Stream::kError)) deadline_ = Deadline::in(job_.grace);
  const auto open = [](const RankProcess& rank) { return rank.output_open(); };
  std::move(former_.begin(), former_.end(), std::back_inserter(ranks_));
  former_.clear();
  if (std::any_of(ranks_.begin(), ranks_.end(), open) && !deadline_.passed()) return;
  for (RankProcess& rank : ranks_) {
    rank.close_output(console_);
    rank.reap();
  }
  ranks_.clear();
  state_ = State::kIdle;
  deadline_ = Deadline::never();
}

}  // namespace accord::cli
