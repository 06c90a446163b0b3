// The format: "Trace Event Format", Google 2016; times are microseconds, from the first operation on. An operation that has
// not ended reaches to the moment when its record was taken.
#include "cli/diagnose/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "exec/domain.hpp"

namespace accord::cli {
namespace {

using comm::flight::Operation;
using comm::flight::Order;
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
    const ordered_json trace = {{"traceEvents", std::move(events_)}, {"displayTimeUnit", "ns"}};
    return trace.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  }

 private:
  /// One offset for each host, so that the ranks of a host stay on one clock.
  std::int64_t unix_time(const FlightLog& log, std::int64_t monotonic) const {
    return monotonic + unix_offsets_.at(log.host);
  }
  double microseconds(const FlightLog& log, std::int64_t monotonic) const {
    return static_cast<double>(unix_time(log, monotonic) - origin_) / 1000;
  }

  void add(const FlightLog& log) {
    const int process = log.peers[static_cast<std::size_t>(log.rank)].process;
    const auto [place, is_new] = processes_.try_emplace({log.host, process}, processes_.size() + 1);
    const std::size_t number = place->second;
    if (is_new) {
      name("process_name", number, 0, fmt::format("rank {} of {} (process {})", log.rank, log.name, process));
      events_.push_back(
          {{"ph", "M"}, {"name", "process_sort_index"}, {"pid", number}, {"args", {{"sort_index", log.rank}}}});
    }
    for (const Order& order : log.orders) {
      const std::size_t track = ++tracks_;
      name("thread_name", number, track, track_name(log, order));
      for (const Operation& operation : order.operations)
        if (operation.started_ns) events_.push_back(slice(log, order, operation, number, track));
    }
  }

  void name(const char* what, std::size_t process, std::size_t track, const std::string& text) {
    events_.push_back({{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", track}, {"args", {{"name", text}}}});
  }

  static std::string track_name(const FlightLog& log, const Order& order) {
    switch (order.direction) {
      case Direction::kNone: break;
      case Direction::kSend: return fmt::format("{}: to rank {}", log.name, order.peer);
      case Direction::kReceive: return fmt::format("{}: from rank {}", log.name, order.peer);
    }
    return fmt::format("{}: collectives", log.name);
  }

  ordered_json slice(const FlightLog& log, const Order& order, const Operation& operation, std::size_t process,
                     std::size_t track) const {
    const std::int64_t end = std::max(operation.ended_ns.value_or(log.taken_ns), *operation.started_ns);
    const std::string name = order.direction == Direction::kSend      ? "send"
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
    return {{"ph", "X"},
            {"name", name},
            {"cat", order.direction == Direction::kNone ? "collective" : "message"},
            {"pid", process},
            {"tid", track},
            {"ts", microseconds(log, *operation.started_ns)},
            {"dur", static_cast<double>(end - *operation.started_ns) / 1000},
            {"args", std::move(arguments)}};
  }

  std::vector<const FlightLog*> logs_;
  std::map<std::string, std::int64_t> unix_offsets_;  // by host
  std::int64_t origin_ = std::numeric_limits<std::int64_t>::max();
  std::map<std::pair<std::string, int>, std::size_t> processes_;
  std::size_t tracks_ = 0;
  ordered_json events_ = ordered_json::array();
};

}  // namespace

std::string to_trace(const std::vector<GroupEvidence>& groups) { return Trace(groups).text(); }

}  // namespace accord::cli
