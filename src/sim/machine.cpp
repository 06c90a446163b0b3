#include "sim/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "base/fd.hpp"
#include "base/text.hpp"
#include "sim/toml_reader.hpp"

namespace accord::sim {
namespace {

constexpr std::array<std::string_view, 2> kTables = {"host", "network"};
constexpr std::array<std::string_view, 5> kShapes = {"crossbar", "fat_tree", "rail_optimized", "dragonfly", "torus"};

Status read_host(const toml::table& table, HostModel& host) {
  TomlReader reader(table, "host");
  reader.count("ranks", host.ranks);
  reader.number("call_seconds", host.call_seconds, 0);
  reader.number("step_seconds", host.times.seconds_per_step, 0);
  reader.number("hop_seconds", host.times.seconds_per_hop, 0);
  reader.rate("bytes_per_second", host.times.touched);
  reader.rate("exchanged_bytes_per_second", host.times.exchanged);
  reader.rate("published_bytes_per_second", host.times.published, TomlReader::Need::kOptional);
  reader.rate("packet_bytes_per_second", host.times.packets);
  reader.rate("packet_sum_bytes_per_second", host.times.packet_sums, TomlReader::Need::kOptional);
  reader.rate("read_bytes_per_second", host.times.read, TomlReader::Need::kOptional);
  reader.number("memory_bytes_per_second", host.memory_bytes_per_second, 1, TomlReader::Need::kOptional);
  reader.number("cache_bytes", host.cache_bytes, 0, TomlReader::Need::kOptional);
  reader.count("cores", host.cores, TomlReader::Need::kOptional);
  reader.number("flops_per_second", host.flops_per_second, 1, TomlReader::Need::kOptional);
  reader.number("core_switch_seconds", host.core_switch_seconds, 0, TomlReader::Need::kOptional);
  return reader.finish();
}

Status read_network(const toml::table& table, NetworkModel& network) {
  TomlReader reader(table, "network");
  const std::string_view shape = reader.word("shape", kShapes);
  network.shape = static_cast<NetworkShape>(std::find(kShapes.begin(), kShapes.end(), shape) - kShapes.begin());
  reader.count("nics", network.nics, TomlReader::Need::kOptional);
  reader.number("nic_bytes_per_second", network.nic_bytes_per_second, 1);
  reader.number("message_seconds", network.message_seconds, 0);
  reader.number("latency_seconds", network.latency_seconds, 0);
  const bool has_leaves = network.shape == NetworkShape::kFatTree || network.shape == NetworkShape::kRailOptimized;
  if (network.shape != NetworkShape::kCrossbar) reader.number("switch_seconds", network.switch_seconds, 0);
  if (has_leaves || network.shape == NetworkShape::kDragonfly)
    reader.count("hosts_per_switch", network.hosts_per_switch);
  if (has_leaves) reader.number("oversubscription", network.oversubscription, 1, TomlReader::Need::kOptional);
  if (network.shape == NetworkShape::kDragonfly)
    reader.number("global_bytes_per_second", network.global_bytes_per_second, 1);
  if (network.shape == NetworkShape::kTorus) reader.counts("torus", network.torus);
  reader.flag("hosts_share_cores", network.hosts_share_cores);
  return reader.finish();
}

Status read_tables(const toml::table& file, Machine& machine) {
  ACCORD_RETURN_IF_ERROR(check_tables(file, kTables, std::span(kTables).first(1)));
  ACCORD_RETURN_IF_ERROR(read_host(*file["host"].as_table(), machine.host));
  machine.has_network = file.contains("network");
  if (!machine.has_network) return {};
  ACCORD_RETURN_IF_ERROR(read_network(*file["network"].as_table(), machine.network));
  if (machine.network.nics > machine.host.ranks)
    return invalid_toml("network.nics", nullptr,
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

Result<Machine> machine_from_toml(std::string_view text) {
  Machine machine;
  ACCORD_RETURN_IF_ERROR(read_toml(text, [&](const toml::table& file) { return read_tables(file, machine); }));
  return machine;
}

Result<Machine> read_machine(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  Result<Machine> machine = machine_from_toml(text);
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
