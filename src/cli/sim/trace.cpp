// The viewer shows nanoseconds, so shorter operations have no length.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/trace_events.hpp"
#include "cli/sim/recording.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kMostSlices = 1000000;
constexpr std::size_t kLinkProcess = 0;

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

std::string name_of(const sim::JournalEntry& entry, const std::string& label) {
  switch (entry.kind) {
    case sim::OpKind::kWork: return "copy or reduce";
    case sim::OpKind::kSend: return fmt::format("send to rank {}", entry.peer);
    case sim::OpKind::kNotify: return fmt::format("signal to rank {}", entry.peer);
    case sim::OpKind::kWait: return "wait";
    case sim::OpKind::kBarrier: return "barrier of lanes";
    case sim::OpKind::kCompute: return label;
  }
  return "unknown";
}

class SimTrace {
 public:
  explicit SimTrace(const SimRecording& recording) : recording_(recording), entries_(recording.journal.entries) {}

  std::string text() {
    for (const sim::PathStep& step : recording_.path.steps) on_path_.push_back(step.entry);
    for (std::uint32_t i = 0; i < entries_.size(); ++i) add(i);
    add_links();
    return std::move(events_).text();
  }

 private:
  struct Track {
    TracePlace place;
    double end = 0;
  };

  // A track for each lane of each stream.
  Track& track_of(const sim::JournalEntry& entry) {
    const std::uint32_t stream = recording_.tasks[entry.task].stream;
    const auto [known, is_new] = tracks_.try_emplace({entry.rank, stream, entry.lane});
    if (is_new) {
      const std::size_t process = static_cast<std::size_t>(entry.rank) + 1;
      known->second.place = {process, ++tracks_made_};
      if (named_.insert(entry.rank).second)
        events_.name_process(process, fmt::format("rank {}", entry.rank), entry.rank + 1);
      events_.name_track(known->second.place, fmt::format("stream {}, lane {}", stream, entry.lane));
    }
    return known->second;
  }

  void add(std::uint32_t number) {
    const sim::JournalEntry& entry = entries_[number];
    Track& track = track_of(entry);
    places_.push_back(track.place);
    const bool was_told = entry.reason == sim::Reason::kSignal || entry.reason == sim::Reason::kMessage;
    if (was_told && entry.begin > track.end) {
      const sim::JournalEntry& cause = entries_[entry.cause];
      events_.add({.place = track.place,
                   .name = fmt::format("waits for rank {}", cause.rank),
                   .category = "wait",
                   .begin_ns = nanoseconds(track.end),
                   .end_ns = nanoseconds(entry.begin),
                   .arguments = {}});
      events_.add_flow(places_[entry.cause], nanoseconds(cause.begin), track.place, nanoseconds(entry.begin),
                       entry.reason == sim::Reason::kSignal ? "signal" : "message");
    }
    track.end = entry.end;
    nlohmann::ordered_json arguments = {{"task", recording_.labels[recording_.tasks[entry.task].label]},
                                        {"round", entry.round}};
    if (entry.bytes > 0) arguments["bytes"] = entry.bytes;
    if (std::binary_search(on_path_.begin(), on_path_.end(), number)) arguments["critical_path"] = true;
    events_.add({.place = track.place,
                 .name = name_of(entry, recording_.labels[recording_.tasks[entry.task].label]),
                 .category = "operation",
                 .begin_ns = nanoseconds(entry.begin),
                 .end_ns = nanoseconds(entry.end),
                 .arguments = std::move(arguments)});
  }

  // The bytes per second of the transfers that are under way, each taken as even.
  void add_links() {
    std::map<std::int32_t, std::map<std::int64_t, double>> changes;  // by link and time
    for (const sim::JournalTransfer& transfer : recording_.journal.transfers) {
      const std::int64_t begin = nanoseconds(transfer.begin), end = std::max(nanoseconds(transfer.end), begin + 1);
      const double rate = transfer.bytes / (static_cast<double>(end - begin) * 1e-9);
      for (const std::int32_t link : recording_.journal.routes[transfer.route]) {
        changes[link][begin] += rate;
        changes[link][end] -= rate;
      }
    }
    if (!changes.empty()) events_.name_process(kLinkProcess, "links, GB/s", 0);
    for (const auto& [link, of_link] : changes) {
      double rate = 0;
      for (const auto& [time, change] : of_link) {
        rate += change;
        events_.add_counter(kLinkProcess, recording_.times.links[static_cast<std::size_t>(link)].name, time,
                            std::max(rate, 0.0) / 1e9);
      }
    }
  }

  const SimRecording& recording_;
  const std::vector<sim::JournalEntry>& entries_;
  TraceEvents events_;
  std::vector<std::uint32_t> on_path_;
  std::map<std::tuple<Rank, std::uint32_t, std::uint32_t>, Track> tracks_;
  std::set<Rank> named_;
  std::size_t tracks_made_ = 0;
  std::vector<TracePlace> places_;  // by entry
};

}  // namespace

Result<std::string> sim_trace(const SimRecording& recording) {
  const std::size_t count = recording.journal.entries.size();
  if (count > kMostSlices)
    return Status(StatusCode::kUnsupported, fmt::format("{} operations were simulated, and viewers show at most {} of "
                                                        "them; simulate fewer ranks or bytes",
                                                        count, kMostSlices));
  return SimTrace(recording).text();
}

}  // namespace accord::cli
