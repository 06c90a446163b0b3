// The first failure of a generation decides: the other launchers are told to stop, and once every node has reported
// that its ranks are gone, the job starts again with the next generation or finishes. A launcher that is gone has no
// ranks left (they die with it). Its loss ends the job, unless the job is elastic and has enough ranks left: then
// another launcher may take its place.
#include "cli/launch/coordinator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "accord/info.hpp"
#include "base/text.hpp"

namespace accord::cli {

Coordinator::Coordinator(const Job& job, std::function<Status(Start&)> host) : job_(job), host_(std::move(host)) {}

Result<int> Coordinator::admit(const Hello& hello) {
  const auto refuse = [](std::string reason) { return Status(StatusCode::kMismatch, std::move(reason)); };
  if (hello.version != version())
    return refuse(fmt::format("node 0 has accord {}, but this launcher has {}", version(), hello.version));
  if (hello.run_id != job_.run_id) {
    return refuse(fmt::format("this is the endpoint of job \"{}\", but the launcher belongs to \"{}\" (--rdzv-id)",
                              job_.run_id, hello.run_id));
  }
  if (hello.nodes != job_.nodes) {
    return refuse(
        fmt::format("node 0 was started with --nnodes {}, but this launcher with {}", job_.nodes, hello.nodes));
  }
  if (hello.elastic != elastic_text(job_))
    return refuse(fmt::format("node 0 was started with --elastic \"{}\", but this launcher with \"{}\"",
                              elastic_text(job_), hello.elastic));
  if (state_ == State::kRunning && job_.elastic) return replace(hello);
  if (state_ != State::kGathering) return refuse(fmt::format("all {} nodes of this job have arrived", job_.nodes));

  int node = hello.node;
  if (node < 0) {
    node = 0;
    while (nodes_.contains(node)) ++node;
  }
  if (node >= job_.nodes) return refuse(fmt::format("--node-rank {} must be less than --nnodes {}", node, job_.nodes));
  if (nodes_.contains(node)) return refuse(fmt::format("another launcher arrived with --node-rank {}", node));
  nodes_[node].ranks = hello.ranks;
  if (static_cast<int>(nodes_.size()) == job_.nodes) start_generation();
  return node;
}

Result<int> Coordinator::replace(const Hello& hello) {
  for (auto& [number, node] : nodes_) {
    if (!node.lost || (hello.node >= 0 && hello.node != number) || hello.ranks != node.ranks) continue;
    node.lost = node.ended = false;
    Start start = start_;
    start.node = number;
    start.first_rank = node.first_rank;
    outgoing_.emplace_back(number, start);
    return number;
  }
  return Status(StatusCode::kMismatch,
                fmt::format("no launcher{} with -n {} was lost from the job, which runs",
                            hello.node >= 0 ? fmt::format(" with --node-rank {}", hello.node) : "", hello.ranks));
}

void Coordinator::receive(int node, const Message& message) {
  if (const auto* failed = std::get_if<Failed>(&message)) {
    const bool current = state_ == State::kRunning && failed->generation == generation_;
    if (current) stop(failed->failure, 0, !job_.elastic && generation_ < job_.max_restarts);
  } else if (const auto* ended = std::get_if<Ended>(&message)) {
    if (ended->generation != generation_) return;
    nodes_[node].ended = true;
    finish_if_all_ended();
  } else if (const auto* interrupted = std::get_if<Interrupted>(&message)) {
    stop({}, interrupted->signal, false);
  }
}

void Coordinator::lose(int node, const std::string& reason) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || found->second.lost || state_ == State::kFinished) return;
  if (state_ == State::kGathering) {  // it may connect again
    nodes_.erase(found);
    return;
  }
  found->second.lost = true;
  found->second.ended = true;
  if (can_go_on()) return finish_if_all_ended();
  Failure failure;
  failure.node = node;
  failure.reason = reason;
  stop(failure, 0, false);
  finish_if_all_ended();
}

std::string Coordinator::missing() const {
  std::vector<Rank> absent;
  for (int node = 0; node < job_.nodes; ++node) {
    if (!nodes_.contains(node)) absent.push_back(node);
  }
  std::string count = fmt::format("{} of {} launchers", absent.size(), job_.nodes);
  if (!job_.node.has_value()) return count;
  std::string numbers;
  for (const int node : absent) numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", node);
  return fmt::format("{} (--node-rank {})", count, numbers);
}

void Coordinator::start_generation() {
  state_ = State::kRunning;
  stop_.reset();
  Start start;
  start.generation = generation_;
  start.world_size = 0;
  start.master_host = job_.master_host;
  start.master_port = job_.master_port;
  for (auto& [number, node] : nodes_) {
    node.ended = false;
    start.world_size += node.ranks;
  }
  if (const Status hosted = host_(start); !hosted.ok()) {
    Failure failure;
    failure.reason = hosted.message();
    return stop(failure, 0, false);
  }
  start_ = start;
  for (auto& [number, node] : nodes_) {
    start.node = number;
    node.first_rank = start.first_rank;
    outgoing_.emplace_back(number, start);
    start.first_rank += node.ranks;
  }
}

void Coordinator::stop(const Failure& failure, int signal, bool restart) {
  if (state_ == State::kGathering) {
    state_ = State::kFinished;
    return broadcast(Finish{signal != 0 ? 128 + signal : exit_code_of(failure)});
  }
  if (state_ == State::kFinished) return;
  const bool known = state_ == State::kStopping;
  if (known) {
    stop_->restart = stop_->restart && restart;  // a later stop may cancel a restart
    if (signal == 0 || stop_->signal != 0) return;
    stop_->signal = signal;
  } else {
    stop_ = Stop{generation_, signal, failure, restart};
  }
  state_ = State::kStopping;
  broadcast(*stop_);
}

void Coordinator::finish_if_all_ended() {
  const auto ended = [](const auto& entry) { return entry.second.ended; };
  if (!std::all_of(nodes_.begin(), nodes_.end(), ended)) return;
  if (state_ == State::kStopping && stop_->restart) {
    ++generation_;
    return start_generation();
  }
  if (state_ != State::kRunning && state_ != State::kStopping) return;
  const int exit_code = !stop_.has_value()   ? 0
                        : stop_->signal != 0 ? 128 + stop_->signal
                                             : exit_code_of(stop_->failure);
  state_ = State::kFinished;
  broadcast(Finish{exit_code});
}

bool Coordinator::can_go_on() const {
  if (!job_.elastic || state_ != State::kRunning) return false;
  int ranks = 0;
  for (const auto& [number, node] : nodes_) ranks += node.lost ? 0 : node.ranks;
  return ranks >= job_.elastic->least;
}

void Coordinator::broadcast(const Message& message) {
  for (const auto& [number, node] : nodes_) {
    if (!node.lost) outgoing_.emplace_back(number, message);
  }
}

}  // namespace accord::cli
