// Each figure is what remains of a timing after the figures before it are taken away:
//
//   a call of a rank alone        a call
//   a word to another rank        a hop
//   a call with k short copies    its slope is a step
//   a copy of n bytes             2 n touched, in a working set of 2 n
//   a write, a read               2 n touched, and n published or exchanged
//   writing and reading packets   4 n touched, n exchanged, 2 n in packets
//   a sum of n bytes of packets   3 n touched, and n summed
//   a call with k round trips between hosts
//                                 its slope is twice the latency, 4 messages and 4 steps
#include "sim/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace accord::sim {
namespace {

constexpr double kFastest = 1e13;  // bytes per second: what takes no measurable time

double quantile(const std::vector<double>& sorted, double part) {
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

// The rate at which the part of each timing that `known` does not explain handles its bytes.
template <typename Known>
RateCurve rest_of(const std::vector<Sized>& timings, double times, Known known) {
  std::vector<RateCurve::Point> points;
  for (const Sized& one : timings) {
    const double rest = (one.seconds.value - known(one.bytes)) / (times * one.bytes);
    points.push_back({one.bytes, rest > 1 / kFastest ? 1 / rest : kFastest});
  }
  return RateCurve(std::move(points));
}

// The size at which a byte takes as long as the mean of the smallest and the largest size, on a logarithmic scale. 0 if
// the largest size is hardly slower.
double cache_bytes_of(const RateCurve& touched) {
  constexpr double kSlower = 1.5;
  const std::vector<RateCurve::Point>& points = touched.points();
  const double first = 1 / points.front().bytes_per_second, last = 1 / points.back().bytes_per_second;
  if (last < kSlower * first) return 0;
  double low = points.front().bytes, high = points.back().bytes;
  while (high > 1.01 * low) {
    const double middle = std::sqrt(low * high);
    (touched.seconds_per_byte(middle) < (first + last) / 2 ? low : high) = middle;
  }
  return std::round(low);
}

template <typename Timing>
std::string note_on(const std::vector<Timing>& timings) {
  double most = 0;
  for (const Timing& one : timings) most = std::max(most, one.seconds.spread);
  return fmt::format("spread up to {:.0f} %", 100 * most);
}

std::string note_on(const Figure& figure) { return fmt::format("spread {:.0f} %", 100 * figure.spread); }

std::string first_and_last(const std::vector<Repeated>& timings, std::string_view what) {
  return fmt::format("calls with {} and {} {}: {:.3g} and {:.3g} us, {}", timings.front().times, timings.back().times,
                     what, 1e6 * timings.front().seconds.value, 1e6 * timings.back().seconds.value, note_on(timings));
}

}  // namespace

Figure figure_of(std::vector<double> samples, Statistic statistic) {
  std::sort(samples.begin(), samples.end());
  const double median = quantile(samples, 0.5);
  return {statistic == Statistic::kMedian ? median : samples.front(),
          (quantile(samples, 0.75) - quantile(samples, 0.25)) / median};
}

double slope_of(const std::vector<Repeated>& points) {
  std::vector<double> slopes;
  for (std::size_t a = 0; a < points.size(); ++a)
    for (std::size_t b = a + 1; b < points.size(); ++b)
      if (points[a].times != points[b].times)
        slopes.push_back((points[b].seconds.value - points[a].seconds.value) / (points[b].times - points[a].times));
  return median_of(std::move(slopes));
}

Calibrated host_from(const HostTimings& timings) {
  Calibrated calibrated;
  HostModel& host = calibrated.machine.host;
  HostTimes& times = host.times;
  const auto note = [&](const char* key, std::string text) { calibrated.notes.emplace_back(key, std::move(text)); };
  host.ranks = timings.ranks;
  host.cores = timings.cores;

  times.seconds_per_step = std::max(0.0, slope_of(timings.steps));
  note("host.step_seconds", first_and_last(timings.steps, "copies of 8 bytes"));
  times.seconds_per_hop = timings.hop.value;
  host.call_seconds = timings.call.value;
  note("host.call_seconds", "barriers of one rank; " + note_on(timings.call));
  note("host.hop_seconds", "half of the time of a word to another rank and back; " + note_on(timings.hop));

  std::vector<RateCurve::Point> touched;
  for (const Sized& one : timings.copies) touched.push_back({2 * one.bytes, 2 * one.bytes / one.seconds.value});
  times.touched = RateCurve(std::move(touched));
  note("host.bytes_per_second", "copies from one buffer to another; " + note_on(timings.copies));
  const auto copy = [&](double bytes) { return 2 * bytes * times.touched.seconds_per_byte(2 * bytes); };
  times.published = rest_of(timings.writes, 1, copy);
  note("host.published_bytes_per_second", "writes of what another rank has read; " + note_on(timings.writes));
  times.exchanged = rest_of(timings.reads, 1, copy);
  note("host.exchanged_bytes_per_second", "reads of what another rank has written; " + note_on(timings.reads));
  std::vector<Sized> packets = timings.packet_writes;
  for (std::size_t i = 0; i < packets.size(); ++i) packets[i].seconds.value += timings.packet_reads[i].seconds.value;
  times.packets = rest_of(packets, 2, [&](double bytes) {
    return 4 * bytes * times.touched.seconds_per_byte(bytes) + bytes * times.exchanged.seconds_per_byte_of_step(bytes);
  });
  note("host.packet_bytes_per_second", "the same in packets; " + note_on(timings.packet_writes));
  const auto sum = [&](double bytes) { return 3 * bytes * times.touched.seconds_per_byte(3 * bytes); };
  times.packet_sums = RateCurve(rest_of({timings.packet_sum}, 1, sum).points()[0].bytes_per_second);
  note("host.packet_sum_bytes_per_second",
       "sums of packets and a buffer, line by line; " + note_on(timings.packet_sum.seconds));
  if (!timings.kernel_reads.empty()) {
    times.read = rest_of(timings.kernel_reads, 1, [](double) { return 0.0; });
    note("host.read_bytes_per_second", "process_vm_readv; " + note_on(timings.kernel_reads));
  }

  host.memory_bytes_per_second = std::accumulate(timings.memory_rates.begin(), timings.memory_rates.end(), 0.0);
  note("host.memory_bytes_per_second", fmt::format("copies of {} ranks at once", timings.memory_rates.size()));
  host.cache_bytes = cache_bytes_of(times.touched);
  note("host.cache_bytes", "where copies become slow");
  host.core_switch_seconds = timings.core_switch.value;
  note("host.core_switch_seconds", "two ranks that yield to each other; " + note_on(timings.core_switch));
  return calibrated;
}

void add_network(const NetworkTimings& timings, Calibrated& calibrated) {
  calibrated.machine.has_network = true;
  NetworkModel& network = calibrated.machine.network;
  const HostModel& host = calibrated.machine.host;
  const auto note = [&](const char* key, std::string text) { calibrated.notes.emplace_back(key, std::move(text)); };
  network.shape = NetworkShape::kCrossbar;
  network.hosts_share_cores = timings.share_cores;
  network.nic_bytes_per_second = timings.stream.value;
  note("network.nic_bytes_per_second", "long messages in one direction; " + note_on(timings.stream));
  // A stream of messages goes at the pace of the sender or of the receiver. Neither can take longer than half of the
  // way there.
  const double way = slope_of(timings.round_trips) / 2;
  network.message_seconds =
      std::clamp(timings.message.value - host.call_seconds - 2 * host.times.seconds_per_step, 0.0, way / 2);
  note("network.message_seconds", "short messages in one direction; " + note_on(timings.message));
  network.latency_seconds = std::max(0.0, way - 2 * network.message_seconds - 2 * host.times.seconds_per_step);
  note("network.latency_seconds", first_and_last(timings.round_trips, "round trips of a signal"));
}

}  // namespace accord::sim
