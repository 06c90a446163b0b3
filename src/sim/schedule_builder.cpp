#include "sim/schedule_builder.hpp"

#include <algorithm>

namespace accord::sim {

ScheduleBuilder::ScheduleBuilder(const Machine& machine, const topology::Topology& topology, std::size_t slot_bytes)
    : machine_(machine), topology_(topology), slot_bytes_(slot_bytes), selector_(plan::Selector::create("")) {
  schedule_.ranks = topology.size();
}

TaskId ScheduleBuilder::add_task(Rank rank, std::uint32_t stream, std::string_view label) {
  schedule_.streams = std::max(schedule_.streams, static_cast<int>(stream) + 1);
  schedule_.tasks.push_back({.rank = rank, .stream = stream, .label = number_of(label)});
  return static_cast<TaskId>(schedule_.tasks.size() - 1);
}

void ScheduleBuilder::compute(TaskId task, double seconds) {
  add_op(task, {.kind = OpKind::kCompute, .seconds = seconds});
}

void ScheduleBuilder::message(TaskId sent, TaskId received, std::uint64_t bytes) {
  const Rank from = schedule_.tasks[sent].rank, to = schedule_.tasks[received].rank;
  const std::uint32_t event = schedule_.events++;
  if (topology_.host_of(from) == topology_.host_of(to)) {
    const HostTimes& times = machine_.host.times;
    const auto size = static_cast<double>(bytes);
    const double copy = 2 * size * times.touched.seconds_per_byte(size);
    const double written = copy + size * times.published.seconds_per_byte_of_step(size);
    const double read = copy + size * times.exchanged.seconds_per_byte_of_step(size);
    const double step = times.seconds_per_step;
    add_op(sent, {.kind = OpKind::kWork, .seconds = written});
    add_op(sent, {.kind = OpKind::kNotify, .peer = to, .event = event, .seconds = step});
    add_op(received, {.kind = OpKind::kWait, .event = event, .seconds = step});
    add_op(received, {.kind = OpKind::kWork, .seconds = read});
    return;
  }
  const double seconds = machine_.network.message_seconds;
  add_op(sent, {.kind = OpKind::kSend,
                .is_remote = true,
                .peer = to,
                .event = event,
                .channel = channel_between(from, to),
                .length = bytes,
                .seconds = seconds,
                .bytes_per_element = 1});
  add_op(received, {.kind = OpKind::kWait, .is_remote = true, .event = event, .seconds = seconds});
}

Result<std::vector<TaskId>> ScheduleBuilder::call(const exec::RequestRecord& request, const Members& members,
                                                  std::uint32_t stream, std::string_view label) {
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<const Programs> programs, programs_of_call(request, *members));
  std::vector<TaskId> tasks;
  for (Rank member = 0; member < static_cast<Rank>(members->size()); ++member) {
    tasks.push_back(add_task((*members)[static_cast<std::size_t>(member)], stream, label));
    schedule_.tasks.back().call = static_cast<std::uint32_t>(schedule_.calls.size());
    schedule_.tasks.back().member = member;
  }
  schedule_.calls.push_back({std::move(programs), members});
  return tasks;
}

Result<std::shared_ptr<const Programs>> ScheduleBuilder::programs_of_call(const exec::RequestRecord& request,
                                                                          const std::vector<Rank>& members) {
  std::vector<int> hosts;
  std::vector<topology::Place> places;
  std::unordered_map<int, int> numbers;
  for (const Rank rank : members) {
    hosts.push_back(numbers.try_emplace(topology_.host_of(rank), static_cast<int>(numbers.size())).first->second);
    places.push_back(topology_.place(rank));
  }
  std::shared_ptr<const Programs>& known =
      programs_[{request.collective, request.dtype, request.op, request.root, request.count, std::move(hosts)}];
  if (known != nullptr) return known;
  ACCORD_RETURN_IF_ERROR(selector_.status());
  const topology::Topology topology(std::move(places));
  ACCORD_ASSIGN_OR_RETURN(const plan::Choice choice,
                          selector_->choose({.collective = request.collective,
                                             .bytes = static_cast<std::size_t>(request.count) * size_of(request.dtype),
                                             .root = request.root,
                                             .op = request.op,
                                             .readable = topology.readable()},
                                            topology));
  const Call prepared{.request = request, .slot_bytes = choice.slot_bytes != 0 ? choice.slot_bytes : slot_bytes_};
  ACCORD_ASSIGN_OR_RETURN(Programs programs, programs_of(*choice.algorithm, prepared, machine_, topology, false));
  known = std::make_shared<const Programs>(std::move(programs));
  return known;
}

// The operations of a task are added one after the other.
void ScheduleBuilder::add_op(TaskId id, const Op& op) {
  Task& task = schedule_.tasks[id];
  if (task.op_count++ == 0) task.first_op = static_cast<std::uint32_t>(schedule_.ops.size());
  schedule_.ops.push_back(op);
}

std::uint32_t ScheduleBuilder::channel_between(Rank from, Rank to) {
  const std::uint64_t pair = (static_cast<std::uint64_t>(from) << 32) | static_cast<std::uint32_t>(to);
  const auto [known, is_new] = channels_.try_emplace(pair, static_cast<std::uint32_t>(schedule_.channels.size()));
  if (is_new) schedule_.channels.push_back({from, to});
  return known->second;
}

std::uint32_t ScheduleBuilder::number_of(std::string_view label) {
  if (const auto known = labels_.find(label); known != labels_.end()) return known->second;
  schedule_.labels.emplace_back(label);
  return labels_.emplace(label, static_cast<std::uint32_t>(labels_.size())).first->second;
}

Successors ScheduleBuilder::successors_of(std::vector<Edge>& edges) const {
  std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.before < b.before; });
  Successors result;
  result.first.reserve(schedule_.tasks.size() + 1);
  result.tasks.reserve(edges.size());
  for (std::size_t task = 0; task <= schedule_.tasks.size(); ++task) {
    while (result.tasks.size() < edges.size() && edges[result.tasks.size()].before < task)
      result.tasks.push_back(edges[result.tasks.size()].task);
    result.first.push_back(static_cast<std::uint32_t>(result.tasks.size()));
  }
  return result;
}

Schedule ScheduleBuilder::take() && {
  schedule_.after_end = successors_of(after_end_);
  schedule_.after_begin = successors_of(after_begin_);
  return std::move(schedule_);
}

}  // namespace accord::sim
