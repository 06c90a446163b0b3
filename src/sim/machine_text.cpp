#include "sim/machine_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace accord::sim {
namespace {

class Writer {
 public:
  explicit Writer(const std::vector<std::pair<std::string, std::string>>& notes) : notes_(notes) {}

  void table(std::string_view name) {
    if (!text_.empty()) text_ += "\n";
    text_ += fmt::format("[{}]\n", name);
    table_ = name;
  }
  void text(std::string_view key, std::string_view value) {
    const auto note = std::find_if(notes_.begin(), notes_.end(),
                                   [&](const auto& one) { return one.first == fmt::format("{}.{}", table_, key); });
    if (note != notes_.end()) text_ += fmt::format("# {}\n", note->second);
    text_ += fmt::format("{} = {}\n", key, value);
  }
  void number(std::string_view key, double value) { text(key, fmt::format("{:.4g}", value)); }
  void count(std::string_view key, int value) { text(key, fmt::format("{}", value)); }
  void rate(std::string_view key, const RateCurve& curve) {
    std::vector<std::string> pairs;
    for (const RateCurve::Point& one : curve.points())
      pairs.push_back(fmt::format("[{:.15g}, {:.4g}]", one.bytes, one.bytes_per_second));
    if (pairs.size() == 1 && curve.points()[0].bytes == 0) return number(key, curve.points()[0].bytes_per_second);
    if (!pairs.empty()) text(key, fmt::format("[\n  {},\n]", fmt::join(pairs, ",\n  ")));
  }
  const std::string& written() const { return text_; }

 private:
  const std::vector<std::pair<std::string, std::string>>& notes_;
  std::string table_;
  std::string text_;
};

void write_network(const NetworkModel& network, Writer& writer) {
  writer.table("network");
  writer.text("shape", fmt::format("\"{}\"", to_string(network.shape)));
  writer.count("nics", network.nics);
  writer.number("nic_bytes_per_second", network.nic_bytes_per_second);
  writer.number("message_seconds", network.message_seconds);
  writer.number("latency_seconds", network.latency_seconds);
  const bool has_leaves = network.shape == NetworkShape::kFatTree || network.shape == NetworkShape::kRailOptimized;
  if (network.shape != NetworkShape::kCrossbar) writer.number("switch_seconds", network.switch_seconds);
  if (has_leaves || network.shape == NetworkShape::kDragonfly)
    writer.count("hosts_per_switch", network.hosts_per_switch);
  if (has_leaves) writer.number("oversubscription", network.oversubscription);
  if (network.shape == NetworkShape::kDragonfly)
    writer.number("global_bytes_per_second", network.global_bytes_per_second);
  if (network.shape == NetworkShape::kTorus) writer.text("torus", fmt::format("[{}]", fmt::join(network.torus, ", ")));
  if (network.hosts_share_cores) writer.text("hosts_share_cores", "true");
}

}  // namespace

std::string to_toml(const Machine& machine, const std::vector<std::pair<std::string, std::string>>& notes) {
  Writer writer(notes);
  const HostModel& host = machine.host;
  writer.table("host");
  writer.count("ranks", host.ranks);
  if (host.cores > 0) writer.count("cores", host.cores);
  writer.number("call_seconds", host.call_seconds);
  writer.number("step_seconds", host.times.seconds_per_step);
  writer.number("hop_seconds", host.times.seconds_per_hop);
  if (host.core_switch_seconds > 0) writer.number("core_switch_seconds", host.core_switch_seconds);
  writer.rate("bytes_per_second", host.times.touched);
  writer.rate("exchanged_bytes_per_second", host.times.exchanged);
  writer.rate("published_bytes_per_second", host.times.published);
  writer.rate("packet_bytes_per_second", host.times.packets);
  writer.rate("packet_sum_bytes_per_second", host.times.packet_sums);
  writer.rate("read_bytes_per_second", host.times.read);
  if (host.memory_bytes_per_second > 0) writer.number("memory_bytes_per_second", host.memory_bytes_per_second);
  if (host.cache_bytes > 0) writer.number("cache_bytes", host.cache_bytes);
  if (machine.has_network) write_network(machine.network, writer);
  return writer.written();
}

}  // namespace accord::sim
