#include "comm/membership/fabric.hpp"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "transport/mixed_transport.hpp"

namespace accord::comm {
namespace {

transport::PlaceView view(const topology::Place& place) {
  return {.host = place.host, .process = place.process, .process_space = place.process_space};
}

/// The first of `ranks` that the transport does not reach from `ranks[0]`.
std::optional<Rank> unreached(const transport::Transport& transport, const topology::Topology& topology,
                              const std::vector<Rank>& ranks) {
  for (const Rank rank : ranks)
    if (!transport.reaches(view(topology.place(ranks[0])), view(topology.place(rank)))) return rank;
  return std::nullopt;
}

bool reaches_all(const transport::Transport& transport, const topology::Topology& topology,
                 const std::vector<Rank>& ranks) {
  return !unreached(transport, topology, ranks);
}

Fabric alone(transport::Transport* transport) {
  return {{transport, [](auto*) {}}, transport->maps()};
}

/// For several hosts: one transport inside them, if one of them has several ranks, and the first one that connects
/// all ranks between them.
std::optional<Fabric> mixed(const topology::Topology& topology) {
  const auto first = [&](auto fits) -> transport::Transport* {
    for (transport::Transport* candidate : transport::transports())
      if (fits(*candidate) && candidate->viable().ok()) return candidate;
    return nullptr;
  };
  std::vector<int> host_of;
  for (const Rank r : topology.ranks()) host_of.push_back(topology.host_of(r));
  transport::Transport* const inside = first([&](const transport::Transport& candidate) {
    bool all = candidate.maps();
    for (int host = 0; host < topology.host_count(); ++host)
      all = all && reaches_all(candidate, topology, topology.ranks_of_host(host));
    return all;
  });
  transport::Transport* const between = first([&](const transport::Transport& candidate) {
    return !candidate.maps() && reaches_all(candidate, topology, topology.ranks());
  });
  if (inside == nullptr || between == nullptr || topology.host_count() == topology.size()) return std::nullopt;
  return Fabric{transport::make_mixed_transport(*inside, *between, std::move(host_of)), true};
}

}  // namespace

std::string in_group(const GroupOptions& options) { return fmt::format("creating group \"{}\"", options.name); }

Result<Fabric> choose_transport(const topology::Topology& topology, const GroupOptions& options) {
  std::string why;
  for (transport::Transport* candidate : transport::transports()) {
    if (options.transport != "auto" && options.transport != candidate->name()) continue;
    const Status viable = candidate->viable();
    const std::optional<Rank> missed = unreached(*candidate, topology, topology.ranks());
    if (!missed && viable.ok()) {
      if (options.transport == "auto" && !candidate->maps())
        if (std::optional<Fabric> two = mixed(topology)) return *std::move(two);
      return alone(candidate);
    }
    if (!missed && viable.code() == StatusCode::kResourceExhausted) return viable.with_context(in_group(options));
    why += fmt::format("; {}: {}", candidate->name(),
                       viable.ok() ? fmt::format("does not reach from rank 0 to rank {}", *missed) : viable.message());
  }
  return Status(StatusCode::kUnsupported, fmt::format("{}: no transport connects all ranks{}", in_group(options), why));
}

}  // namespace accord::comm
