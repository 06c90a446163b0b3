#include "base/trace_events.hpp"

#include <utility>

namespace accord {
namespace {

using nlohmann::ordered_json;

double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

}  // namespace

void TraceEvents::name_process(std::size_t process, const std::string& name, int sort_index) {
  events_.push_back({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"tid", 0}, {"args", {{"name", name}}}});
  events_.push_back(
      {{"ph", "M"}, {"name", "process_sort_index"}, {"pid", process}, {"args", {{"sort_index", sort_index}}}});
}

void TraceEvents::name_track(TracePlace place, const std::string& name) {
  events_.push_back(
      {{"ph", "M"}, {"name", "thread_name"}, {"pid", place.process}, {"tid", place.track}, {"args", {{"name", name}}}});
}

void TraceEvents::add(TraceSlice slice) {
  events_.push_back({{"ph", "X"},
                     {"name", slice.name},
                     {"cat", slice.category},
                     {"pid", slice.place.process},
                     {"tid", slice.place.track},
                     {"ts", microseconds(slice.begin_ns)},
                     {"dur", microseconds(slice.end_ns - slice.begin_ns)},
                     {"args", std::move(slice.arguments)}});
}

void TraceEvents::add_flow(TracePlace from, std::int64_t from_ns, TracePlace to, std::int64_t to_ns,
                           std::string_view name) {
  const auto end = [&](std::string_view phase, TracePlace place, std::int64_t at) {
    return ordered_json{{"ph", phase},          {"name", name},       {"cat", "flow"},         {"id", flows_},
                        {"pid", place.process}, {"tid", place.track}, {"ts", microseconds(at)}};
  };
  ++flows_;
  events_.push_back(end("s", from, from_ns));
  ordered_json finish = end("f", to, to_ns);
  finish["bp"] = "e";  // binds to the enclosing slice
  events_.push_back(std::move(finish));
}

void TraceEvents::add_counter(std::size_t process, const std::string& name, std::int64_t at_ns, double value) {
  events_.push_back(
      {{"ph", "C"}, {"name", name}, {"pid", process}, {"ts", microseconds(at_ns)}, {"args", {{"value", value}}}});
}

std::string TraceEvents::text() && {
  const ordered_json trace = {{"traceEvents", std::move(events_)}, {"displayTimeUnit", "ns"}};
  return trace.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace accord
