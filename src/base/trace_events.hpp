#pragma once
// Chrome's JSON trace events, which ui.perfetto.dev and chrome://tracing open ("Trace Event Format", Google 2016).

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace accord {

/// Where an event is shown.
struct TracePlace {
  std::size_t process = 0;
  std::size_t track = 0;
};

/// An activity with its duration, in nanoseconds from the beginning of the trace.
struct TraceSlice {
  TracePlace place;
  std::string name;
  std::string_view category;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();
};

/// A trace under construction: processes, their tracks, slices on the tracks, and arrows between slices.
class TraceEvents {
 public:
  /// Processes are shown in the order of `sort_index`.
  void name_process(std::size_t process, const std::string& name, int sort_index);
  void name_track(TracePlace place, const std::string& name);
  void add(TraceSlice slice);
  /// Adds an arrow from the slice that runs at `from_ns` in one place to the slice that runs at `to_ns` in another.
  void add_flow(TracePlace from, std::int64_t from_ns, TracePlace to, std::int64_t to_ns, std::string_view name);

  /// Sets a number that changes over time, which is shown as a chart.
  void add_counter(std::size_t process, const std::string& name, std::int64_t at_ns, double value);

  std::string text() &&;

 private:
  nlohmann::ordered_json events_ = nlohmann::ordered_json::array();
  std::size_t flows_ = 0;
};

}  // namespace accord
