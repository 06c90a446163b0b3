// A capture stores the work put into its streams as the nodes of a graph. Each stream knows the nodes that its next
// node must follow: a record stores them in the event, and a wait adds the event's nodes to those of the waiting
// stream. A launch puts the nodes of the stream that began the capture into the stream it is given, and those of each
// other stream into its own thread, with points between them where the graph requires an order.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/host_stream.hpp"

namespace accord::testing {
namespace {

Status capture_error(std::string_view call, std::string_view reason) {
  return Status(StatusCode::kInternal, fmt::format("{}: {}", call, reason));
}

/// Returns whether every node is one of `ends` or comes before one of them.
bool all_reached(const CapturedGraph& graph, const std::set<std::size_t>& ends) {
  std::vector<bool> reached(graph.nodes.size());
  for (const std::size_t end : ends) reached[end] = true;
  for (std::size_t i = graph.nodes.size(); i-- > 0;)
    if (reached[i])
      for (const std::size_t earlier : graph.nodes[i].after) reached[earlier] = true;
  return std::all_of(reached.begin(), reached.end(), [](bool each) { return each; });
}

}  // namespace

Status HostRuntime::begin_capture(Device device, Stream stream) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("begin_capture"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("begin_capture", device, stream));
  if (worker->is_default) return capture_error("begin_capture", "a default stream cannot be captured");
  if (worker->capture != nullptr) return capture_error("begin_capture", "the stream is being captured already");
  worker->capture = std::make_shared<Capture>();
  worker->capture->members = {worker};
  worker->capture->graph->lanes = {device};
  worker->lane = 0;
  worker->tail.clear();
  return {};
}

Status HostRuntime::join(Worker& worker, const PointRef& point) {
  Capture& capture = *point->capture;
  if (capture.ended) return capture_error("wait", "the event was last recorded in a capture that has ended");
  if (worker.capture != nullptr && worker.capture != point->capture) {
    capture.valid = worker.capture->valid = false;
    return capture_error("wait", "the event and the stream belong to different captures");
  }
  if (worker.is_default) {
    capture.valid = false;
    return capture_error("wait", "a default stream cannot be captured");
  }
  if (worker.capture == nullptr) {
    worker.capture = point->capture;
    worker.lane = capture.members.size();
    worker.tail.clear();
    capture.members.push_back(&worker);
    capture.graph->lanes.push_back(worker.device);
  }
  worker.tail.insert(point->nodes.begin(), point->nodes.end());
  return {};
}

Result<Graph> HostRuntime::end_capture(Device device, Stream stream) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("end_capture"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("end_capture", device, stream));
  const auto capture = worker->capture;
  if (capture == nullptr) return capture_error("end_capture", "the stream is not being captured");
  if (capture->members.front() != worker) return capture_error("end_capture", "the capture began in another stream");
  const bool joined = all_reached(*capture->graph, worker->tail);
  capture->ended = true;
  for (Worker* const member : capture->members) member->capture = nullptr;
  if (!capture->valid) return capture_error("end_capture", "the capture was invalidated by an earlier error");
  if (!joined) return capture_error("end_capture", "another stream joined the capture and was not waited for");
  return capture->graph;
}

Status HostRuntime::launch(const Graph& graph, Stream stream) {
  if (!std::exchange(graph->is_uploaded, true) && first_launches_wait_) wait_for_all(graph->lanes.front());
  const auto lock = enter(graph->lanes.front());
  ACCORD_RETURN_IF_ERROR(pop_failure("launch"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const origin, find("launch", graph->lanes.front(), stream));
  if (origin->capture != nullptr) return capture_error("launch", "the stream is being captured");
  ACCORD_RETURN_IF_ERROR(follow(*origin, graph->last_launch));
  ACCORD_ASSIGN_OR_RETURN(const PointRef begin, mark(*origin));

  std::vector<std::unique_ptr<Worker>> others;
  std::vector<Worker*> lanes = {origin};
  for (std::size_t lane = 1; lane < graph->lanes.size(); ++lane) {
    others.emplace_back(new Worker{.device = graph->lanes[lane]});
    lanes.push_back(others.back().get());
    ACCORD_RETURN_IF_ERROR(follow(*lanes.back(), begin));
  }
  std::vector<PointRef> ends;
  for (const CapturedGraph::Node& node : graph->nodes) {
    for (const std::size_t earlier : node.after)
      if (graph->nodes[earlier].lane != node.lane) ACCORD_RETURN_IF_ERROR(follow(*lanes[node.lane], ends[earlier]));
    ACCORD_RETURN_IF_ERROR(push(*lanes[node.lane], node.task));
    ACCORD_ASSIGN_OR_RETURN(ends.emplace_back(), mark(*lanes[node.lane]));
  }
  for (const PointRef& end : ends) ACCORD_RETURN_IF_ERROR(follow(*origin, end));
  ACCORD_ASSIGN_OR_RETURN(graph->last_launch, mark(*origin));
  for (auto& each : others) retire(std::move(each));
  return {};
}

Result<device::Graph> HostRuntime::capture(Device device, Stream stream, const std::function<Status()>& body) {
  ACCORD_RETURN_IF_ERROR(begin_capture(device, stream));
  const Status body_status = body();
  Result<Graph> graph = end_capture(device, stream);
  ACCORD_RETURN_IF_ERROR(body_status);
  ACCORD_RETURN_IF_ERROR(graph.status());
  const std::lock_guard lock(mutex_);
  (*graph)->is_uploaded = true;
  void* const handle = graph->get();
  graphs_.emplace(handle, *std::move(graph));
  return device::Graph{handle};
}

Status HostRuntime::launch_graph(device::Graph graph, Device, Stream stream) {
  std::unique_lock lock(mutex_);
  const auto found = graphs_.find(graph.handle);
  if (found == graphs_.end()) return capture_error("launch_graph", "no such graph");
  const Graph captured = found->second;
  lock.unlock();
  return launch(captured, stream);
}

Status HostRuntime::destroy_graph(device::Graph graph) {
  const std::lock_guard lock(mutex_);
  return graphs_.erase(graph.handle) == 1 ? Status() : capture_error("destroy_graph", "no such graph");
}

Result<bool> HostRuntime::is_capturing(Device device, Stream stream) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("is_capturing"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("is_capturing", device, stream));
  return worker->capture != nullptr;
}

bool HostRuntime::in_same_capture(const PointRef& point, Device device, Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto worker = find("in_same_capture", device, stream);
  return worker.ok() && (*worker)->capture == point->capture;
}

}  // namespace accord::testing
