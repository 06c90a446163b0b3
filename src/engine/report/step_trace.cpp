// Each rank records its steps as JSON. The ranks exchange the records over one group after the other, forwarding the
// records that they have received, and each makes the same trace from them. Ranks of one host share a clock; hosts are
// aligned by their wall clocks. The n-th collective of a group is the same call on all its ranks.
#include "engine/report/step_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/clock.hpp"
#include "base/trace_events.hpp"
#include "engine/graph/node_access.hpp"
#include "topology/topology.hpp"

namespace accord::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kRunTrack = 1;

std::int64_t nanoseconds(auto since_epoch) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count();
}

// Returns the group of a collective that has peers; empty for any other op, including messages between two ranks.
std::string group_of(const LoadedEngine& engine, const Node& node) {
  if (node.op == "accord.send" || node.op == "accord.recv") return "";
  const auto name = group_argument(node);
  if (!name) return "";
  const auto place = engine.groups().places().find(*name);
  return place == engine.groups().places().end() || place->second.size == 1 ? "" : *name;
}

// Returns this rank's place in the groups of several ranks: "tp 1", "dp 0, tp 1".
std::string place_text(const LoadedEngine& engine, const std::string& without = "") {
  std::string text;
  for (const auto& [name, place] : engine.groups().places()) {
    if (place.size > 1 && name != without) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, place.rank);
  }
  return text;
}

Result<Json> own_record(const RunContext& context) {
  const LoadedEngine& engine = context.engine();
  ACCORD_ASSIGN_OR_RETURN(const topology::Place place, topology::this_place());
  const RecordedRuns& recorded = context.recorded();
  std::map<const Node*, std::size_t> numbers;
  Json nodes = Json::array();
  Json steps = Json::array();
  for (const StepTime& step : recorded.steps) {
    const auto [found, is_new] = numbers.try_emplace(step.node, nodes.size());
    if (is_new) {
      const std::string group = step.node == nullptr ? "" : group_of(engine, *step.node);
      nodes.push_back({{"op", step.node == nullptr ? "output copy" : step.node->op},
                       {"module", step.node == nullptr ? "" : step.node->module},
                       {"group", group.empty() ? Json() : Json(group + " of " + place_text(engine, group))}});
    }
    steps.push_back({found->second, step.begin_ns, step.end_ns});
  }
  Json runs = Json::array();
  for (const StepTime& run : recorded.runs) runs.push_back({run.begin_ns, run.end_ns});
  return Json{{"place", place_text(engine)},
              {"host", place.host},
              {"process", place.process},
              {"clock_offset_ns", nanoseconds(std::chrono::system_clock::now().time_since_epoch()) -
                                      nanoseconds(Clock::now().time_since_epoch())},
              {"cut", recorded.truncated},
              {"nodes", nodes},
              {"steps", steps},
              {"runs", runs}};
}

// Returns the records of all ranks of the group, by place.
Result<Json> exchange_records(Communicator group, const Json& mine) {
  const std::string text = mine.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto size = static_cast<std::size_t>(group.size());
  const std::uint64_t bytes = text.size();
  std::vector<std::uint64_t> all_bytes(size);
  ACCORD_RETURN_IF_ERROR(
      group.all_gather(ConstBuffer(&bytes, 1, DType::kUInt64), Buffer{all_bytes.data(), size, DType::kUInt64, {}}));
  const std::vector<std::size_t> counts(all_bytes.begin(), all_bytes.end());
  std::string texts;
  for (const std::size_t count : counts) texts.resize(texts.size() + count);
  ACCORD_RETURN_IF_ERROR(group.all_gather_v(ConstBuffer(text.data(), text.size(), DType::kUInt8),
                                            Buffer{texts.data(), texts.size(), DType::kUInt8, {}}, counts));
  Json received = Json::object();
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    received.update(Json::parse(texts.substr(at, count)));
    at += count;
  }
  return received;
}

/// One rank's part in a collective.
struct CollectiveCall {
  TracePlace place;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

class StepTrace {
 public:
  explicit StepTrace(const Json& ranks) : ranks_(ranks) {
    // One offset for each host, so that its ranks stay on one clock.
    for (const Json& rank : ranks) offsets_.try_emplace(rank["host"], rank["clock_offset_ns"].get<std::int64_t>());
    for (const Json& rank : ranks) {
      for (const char* kind : {"runs", "steps"}) {
        for (const Json& entry : rank[kind]) {
          origin_ = std::min(origin_, time_of(rank, entry[entry.size() - 2]));
        }
      }
    }
  }

  std::string text() && {
    int number = 0;
    for (const Json& rank : ranks_) add_rank(rank, ++number);
    for (const auto& [name, calls] : collectives_) add_arrows(name.first, calls);
    return std::move(events_).text();
  }

 private:
  std::int64_t time_of(const Json& rank, const Json& monotonic) const {
    return monotonic.get<std::int64_t>() + offsets_.at(rank["host"]);
  }

  void add_rank(const Json& rank, int number) {
    const TracePlace track{static_cast<std::size_t>(number), kRunTrack};
    const std::string place = rank["place"];
    events_.name_process(track.process,
                         fmt::format("{}{}process {}{}", place, place.empty() ? "" : ", ", rank["process"].get<int>(),
                                     rank["cut"].get<bool>() ? " (only its first steps)" : ""),
                         number);
    events_.name_track(track, "runs and their steps");
    int run_number = 0;
    for (const Json& run : rank["runs"]) {
      events_.add({.place = track,
                   .name = fmt::format("run {}", ++run_number),
                   .category = "run",
                   .begin_ns = time_of(rank, run[0]) - origin_,
                   .end_ns = time_of(rank, run[1]) - origin_});
    }
    std::map<std::string, std::size_t> calls;
    for (const Json& step : rank["steps"]) add_step(rank, step, track, calls);
  }

  void add_step(const Json& rank, const Json& step, TracePlace track, std::map<std::string, std::size_t>& calls) {
    const Json& node = rank["nodes"][step[0].get<std::size_t>()];
    const std::int64_t begin = time_of(rank, step[1]) - origin_;
    const std::int64_t end = time_of(rank, step[2]) - origin_;
    Json arguments = {{"module", node["module"]}};
    const bool is_collective = node["group"].is_string();
    if (is_collective) {
      const std::size_t call = calls[node["group"]]++;
      arguments["group"] = node["group"];
      arguments["call"] = call + 1;
      collectives_[{node["group"], call}].push_back({track, begin, end});
    }
    events_.add({.place = track,
                 .name = node["op"],
                 .category = is_collective ? "collective" : "op",
                 .begin_ns = begin,
                 .end_ns = end,
                 .arguments = std::move(arguments)});
  }

  void add_arrows(const std::string& name, const std::vector<CollectiveCall>& calls) {
    const auto last =
        std::max_element(calls.begin(), calls.end(),
                         [](const CollectiveCall& a, const CollectiveCall& b) { return a.begin_ns < b.begin_ns; });
    for (const CollectiveCall& call : calls) {
      if (call.place.process == last->place.process) continue;
      // Stays inside the slice even if the clocks of two hosts differ.
      const std::int64_t arrives = std::clamp(last->begin_ns, call.begin_ns, call.end_ns);
      events_.add_flow(last->place, last->begin_ns, call.place, arrives, name);
    }
  }

  const Json& ranks_;
  std::map<std::string, std::int64_t> offsets_;  // by host
  std::int64_t origin_ = std::numeric_limits<std::int64_t>::max();
  std::map<std::pair<std::string, std::size_t>, std::vector<CollectiveCall>> collectives_;
  TraceEvents events_;
};

}  // namespace

Result<std::string> gather_trace(RunContext& context) {
  std::string text;
  ACCORD_RETURN_IF_ERROR(context.between_runs([&]() -> Status {
    ACCORD_ASSIGN_OR_RETURN(Json mine, own_record(context));
    const std::string place = mine["place"];
    Json ranks = Json::object();
    ranks[place] = std::move(mine);
    for (const auto& [name, group] : context.engine().groups().peers()) {
      ACCORD_ASSIGN_OR_RETURN(ranks, exchange_records(group, ranks));
    }
    text = StepTrace(ranks).text();
    return {};
  }));
  return text;
}

}  // namespace accord::engine
