#include "sim/machine.hpp"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "base/fd.hpp"
#include "base/text.hpp"

namespace accord::sim {
namespace {

constexpr std::array<std::string_view, 5> kShapes = {"crossbar", "fat_tree", "rail_optimized", "dragonfly", "torus"};

Status invalid(const std::string& key, const toml::node* node, std::string_view problem) {
  const std::string line = node == nullptr ? "" : fmt::format(" (line {})", node->source().begin.line);
  return {StatusCode::kInvalidArgument, fmt::format("{}{}: {}", key, line, problem)};
}

// Reads the keys of one table. The first error remains.
class Reader {
 public:
  Reader(const toml::table& table, std::string name) : table_(table), name_(std::move(name)) {}

  enum class Need : std::uint8_t { kRequired, kOptional };

  void number(std::string_view key, double& value, double least, Need need = Need::kRequired) {
    const toml::node* node = find(key, need);
    if (node == nullptr) return;
    const std::optional<double> given = node->value<double>();
    if (!given || !std::isfinite(*given) || *given < least)
      return fail(key, node, fmt::format("expected a number of at least {}", least));
    value = *given;
  }

  /// A number of bytes per second, or pairs of a size and such a number.
  void rate(std::string_view key, RateCurve& curve, Need need = Need::kRequired) {
    const toml::node* node = find(key, need);
    if (node == nullptr) return;
    if (!node->is_array()) {
      double rate = 0;
      number(key, rate, 1);
      if (status_.ok()) curve = RateCurve(rate);
      return;
    }
    std::vector<RateCurve::Point> points;
    for (const toml::node& item : *node->as_array()) {
      const toml::array* pair = item.as_array();
      const auto at = [&](std::size_t i) { return pair->get(i)->value<double>().value_or(-1); };
      if (pair == nullptr || pair->size() != 2 || !(at(0) >= 0) || !(at(1) >= 1) || !std::isfinite(at(0) + at(1)))
        return fail(key, &item, "expected a size and a rate of at least 1, such as [4096, 50e9]");
      if (!points.empty() && at(0) <= points.back().bytes) return fail(key, &item, "expected sizes that grow");
      points.push_back({at(0), at(1)});
    }
    if (points.empty()) return fail(key, node, "expected a rate, or a list of sizes and rates");
    curve = RateCurve(std::move(points));
  }

  void flag(std::string_view key, bool& value) {
    const toml::node* node = find(key, Need::kOptional);
    if (node == nullptr) return;
    if (!node->is_boolean()) return fail(key, node, "expected true or false");
    value = node->as_boolean()->get();
  }

  void count(std::string_view key, int& value, Need need = Need::kRequired) {
    const toml::node* node = find(key, need);
    if (node != nullptr) value = positive(key, *node);
  }

  void counts(std::string_view key, std::vector<int>& values) {
    const toml::node* node = find(key, Need::kRequired);
    if (node == nullptr) return;
    if (!node->is_array() || node->as_array()->empty()) return fail(key, node, "expected a list of numbers");
    for (const toml::node& item : *node->as_array()) values.push_back(positive(key, item));
  }

  std::string_view word(std::string_view key, std::span<const std::string_view> words) {
    const toml::node* node = find(key, Need::kRequired);
    if (node == nullptr) return words[0];
    const std::string given = node->value<std::string>().value_or("");
    const auto* found = std::find(words.data(), words.data() + words.size(), given);
    if (found != words.data() + words.size()) return *found;
    fail(key, node, node->is_string() ? unknown_name(std::string(key), given, words).message() : "expected a text");
    return words[0];
  }

  /// Fails if the table has other keys than those that were read.
  Status finish() {
    for (const auto& [key, node] : table_) {
      if (status_.ok() && std::find(known_.begin(), known_.end(), key.str()) == known_.end())
        fail(key.str(), &node, unknown_name("key", std::string(key.str()), known_).message());
    }
    return status_;
  }

 private:
  const toml::node* find(std::string_view key, Need need) {
    known_.push_back(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr && need == Need::kRequired && status_.ok()) fail(key, nullptr, "is missing");
    return status_.ok() ? node : nullptr;
  }

  int positive(std::string_view key, const toml::node& node) {
    const toml::value<std::int64_t>* const integer = node.as_integer();
    const std::int64_t given = integer == nullptr ? 0 : integer->get();
    if (given < 1 || given > std::numeric_limits<int>::max()) fail(key, &node, "expected a number from 1");
    return status_.ok() ? static_cast<int>(given) : 1;
  }

  void fail(std::string_view key, const toml::node* node, std::string_view problem) {
    if (status_.ok()) status_ = invalid(fmt::format("{}.{}", name_, key), node, problem);
  }

  const toml::table& table_;
  std::string name_;
  std::vector<std::string_view> known_;
  Status status_;
};

Status read_host(const toml::table& table, HostModel& host) {
  Reader reader(table, "host");
  reader.count("ranks", host.ranks);
  reader.number("call_seconds", host.call_seconds, 0);
  reader.number("step_seconds", host.times.seconds_per_step, 0);
  reader.number("hop_seconds", host.times.seconds_per_hop, 0);
  reader.rate("bytes_per_second", host.times.touched);
  reader.rate("exchanged_bytes_per_second", host.times.exchanged);
  reader.rate("published_bytes_per_second", host.times.published, Reader::Need::kOptional);
  reader.rate("packet_bytes_per_second", host.times.packets);
  reader.rate("read_bytes_per_second", host.times.read, Reader::Need::kOptional);
  reader.number("memory_bytes_per_second", host.memory_bytes_per_second, 1, Reader::Need::kOptional);
  reader.number("cache_bytes", host.cache_bytes, 0, Reader::Need::kOptional);
  reader.count("cores", host.cores, Reader::Need::kOptional);
  reader.number("core_switch_seconds", host.core_switch_seconds, 0, Reader::Need::kOptional);
  return reader.finish();
}

Status read_network(const toml::table& table, NetworkModel& network) {
  Reader reader(table, "network");
  const std::string_view shape = reader.word("shape", kShapes);
  network.shape = static_cast<NetworkShape>(std::find(kShapes.begin(), kShapes.end(), shape) - kShapes.begin());
  reader.count("nics", network.nics, Reader::Need::kOptional);
  reader.number("nic_bytes_per_second", network.nic_bytes_per_second, 1);
  reader.number("message_seconds", network.message_seconds, 0);
  reader.number("latency_seconds", network.latency_seconds, 0);
  const bool has_leaves = network.shape == NetworkShape::kFatTree || network.shape == NetworkShape::kRailOptimized;
  if (network.shape != NetworkShape::kCrossbar) reader.number("switch_seconds", network.switch_seconds, 0);
  if (has_leaves || network.shape == NetworkShape::kDragonfly)
    reader.count("hosts_per_switch", network.hosts_per_switch);
  if (has_leaves) reader.number("oversubscription", network.oversubscription, 1, Reader::Need::kOptional);
  if (network.shape == NetworkShape::kDragonfly)
    reader.number("global_bytes_per_second", network.global_bytes_per_second, 1);
  if (network.shape == NetworkShape::kTorus) reader.counts("torus", network.torus);
  reader.flag("hosts_share_cores", network.hosts_share_cores);
  return reader.finish();
}

Status read_tables(const toml::table& file, Machine& machine) {
  constexpr std::array<std::string_view, 2> kTables = {"host", "network"};
  for (const auto& [key, node] : file) {
    const std::string name(key.str());
    if (std::find(kTables.begin(), kTables.end(), name) == kTables.end())
      return invalid(name, &node, unknown_name("table", name, kTables).message());
    if (!node.is_table()) return invalid(name, &node, "expected a table");
  }
  if (!file.contains("host")) return invalid("host", nullptr, "is missing");
  ACCORD_RETURN_IF_ERROR(read_host(*file["host"].as_table(), machine.host));
  machine.has_network = file.contains("network");
  if (!machine.has_network) return {};
  ACCORD_RETURN_IF_ERROR(read_network(*file["network"].as_table(), machine.network));
  if (machine.network.nics > machine.host.ranks)
    return invalid("network.nics", nullptr,
                   fmt::format("a host has {} NICs, but {} ranks", machine.network.nics, machine.host.ranks));
  return {};
}

}  // namespace

std::string_view to_string(NetworkShape shape) { return kShapes[static_cast<std::size_t>(shape)]; }

int Machine::core_of(Rank rank) const {
  const int cores = host.cores == 0 ? host.ranks : host.cores;
  if (has_network && network.hosts_share_cores) return rank % cores;
  return rank / host.ranks * cores + rank % host.ranks % cores;
}

Result<Machine> machine_from_toml(std::string_view text) try {
  Machine machine;
  ACCORD_RETURN_IF_ERROR(read_tables(toml::parse(text), machine));
  return machine;
} catch (const toml::parse_error& error) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("line {}: {}", error.source().begin.line, error.description()));
}

Result<Machine> read_machine(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  const Result<Machine> machine = machine_from_toml(text);
  if (!machine.ok()) return machine.status().with_context(path);
  return machine;
}

Result<topology::Topology> topology_of(const Machine& machine, int ranks) {
  const int each = machine.host.ranks;
  if (ranks > each && ranks % each != 0)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} ranks do not fill whole hosts of {} ranks", ranks, each));
  const int hosts = std::max(1, ranks / each);
  if (hosts > 1 && !machine.has_network)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} ranks need {} hosts, and the machine has no network", ranks, hosts));
  std::int64_t places = std::numeric_limits<std::int64_t>::max();
  if (machine.has_network && machine.network.shape == NetworkShape::kTorus) {
    places = 1;
    for (const int size : machine.network.torus) places = std::min<std::int64_t>(places * size, 1 << 30);
  }
  if (hosts > places)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} ranks need {} hosts, and the torus has {}", ranks, hosts, places));
  std::vector<topology::Place> all;
  all.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const int core = machine.core_of(machine.network.hosts_share_cores ? rank : rank % each);
    topology::Place place{.host = fmt::format("host{}", rank / each),
                          .process = rank + 1,
                          .cpus = {core},
                          .numa_nodes = {0},
                          .cores = 1,
                          .core_ids = {core}};
    if (!machine.host.times.read.points().empty()) place.reader = place.host;
    all.push_back(std::move(place));
  }
  return topology::Topology(std::move(all));
}

}  // namespace accord::sim
