// Times are relative to the first operation. An operation that has not ended extends to the moment when its record
// was taken.
#include "cli/diagnose/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/trace_events.hpp"
#include "exec/domain.hpp"

namespace accord::cli {
namespace {

using flight::Operation;
using flight::Order;
using nlohmann::ordered_json;

class Trace {
 public:
  explicit Trace(const std::vector<GroupEvidence>& groups) {
    for (const GroupEvidence& group : groups)
      for (const RankEvidence& rank : group.ranks)
        if (rank.log) logs_.push_back(&*rank.log);
    for (const FlightLog* log : logs_) {
      unix_offsets_.try_emplace(log->host, log->taken_unix_ns - log->taken_ns);
      for (const Order& order : log->orders)
        for (const Operation& operation : order.operations)
          if (operation.started_ns) origin_ = std::min(origin_, unix_time(*log, *operation.started_ns));
    }
  }

  std::string text() {
    for (const FlightLog* log : logs_) add(*log);
    return std::move(events_).text();
  }

 private:
  /// Uses one offset for each host, so that the ranks of a host stay on one clock.
  std::int64_t unix_time(const FlightLog& log, std::int64_t monotonic) const {
    return monotonic + unix_offsets_.at(log.host);
  }
  std::int64_t since_origin(const FlightLog& log, std::int64_t monotonic) const {
    return unix_time(log, monotonic) - origin_;
  }

  void add(const FlightLog& log) {
    const int process = log.peers[static_cast<std::size_t>(log.rank)].process;
    const auto [place, is_new] = processes_.try_emplace({log.host, process}, processes_.size() + 1);
    const std::size_t number = place->second;
    if (is_new) {
      events_.name_process(number, fmt::format("rank {} of {} (process {})", log.rank, log.name, process), log.rank);
    }
    for (const Order& order : log.orders) {
      const TracePlace track{number, ++tracks_};
      events_.name_track(track, track_name(log, order));
      for (const Operation& operation : order.operations)
        if (operation.started_ns) events_.add(slice(log, order, operation, track));
    }
  }

  static std::string track_name(const FlightLog& log, const Order& order) {
    switch (order.direction) {
      case Direction::kNone: break;
      case Direction::kSend: return fmt::format("{}: to rank {}", log.name, order.peer);
      case Direction::kReceive: return fmt::format("{}: from rank {}", log.name, order.peer);
    }
    return fmt::format("{}: collectives", log.name);
  }

  TraceSlice slice(const FlightLog& log, const Order& order, const Operation& operation, TracePlace track) const {
    const std::int64_t end = std::max(operation.ended_ns.value_or(log.taken_ns), *operation.started_ns);
    std::string name = order.direction == Direction::kSend      ? "send"
                       : order.direction == Direction::kReceive ? "recv"
                                                                : exec::name_of(operation.request);
    ordered_json arguments = {{"call", exec::to_string(operation.request)},
                              {"number", operation.number},
                              {"bytes", operation.request.count * size_of(operation.request.dtype)},
                              {"algorithm", operation.algorithm},
                              {"state", to_string(operation.state)},
                              {"communicator", log.name},
                              {"rank", log.rank}};
    if (operation.waits_for) arguments["waited_for_rank"] = *operation.waits_for;
    if (operation.queued_ns)
      arguments["queued_us"] = static_cast<double>(*operation.started_ns - *operation.queued_ns) / 1000;
    return {.place = track,
            .name = std::move(name),
            .category = order.direction == Direction::kNone ? "collective" : "message",
            .begin_ns = since_origin(log, *operation.started_ns),
            .end_ns = since_origin(log, end),
            .arguments = std::move(arguments)};
  }

  std::vector<const FlightLog*> logs_;
  std::map<std::string, std::int64_t> unix_offsets_;  // indexed by host
  std::int64_t origin_ = std::numeric_limits<std::int64_t>::max();
  std::map<std::pair<std::string, int>, std::size_t> processes_;
  std::size_t tracks_ = 0;
  TraceEvents events_;
};

}  // namespace

std::string to_trace(const std::vector<GroupEvidence>& groups) { return Trace(groups).text(); }

}  // namespace accord::cli
