// Two exchanges. "hello" carries the terms (version, size, options) and the place: it shows where each rank runs and
// that all mean the same group. "address" carries the terms again, because splits start with it, and the endpoint's
// descriptor or the reason why there is none: it lets the ranks connect. A rank that cannot open its endpoint says so
// in the second exchange, so that all ranks return its error instead of waiting for it. A rank whose own request is
// refused says so in its first exchange.
#include "comm/membership/bootstrap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/config.hpp"
#include "base/hash.hpp"
#include "comm/explain.hpp"
#include "comm/membership/fabric.hpp"

namespace accord::comm {
namespace {

using nlohmann::json;

constexpr int kProtocol = 2;
constexpr Duration kDeclineTimeout = std::chrono::seconds(1);

/// A table as it is shown to other ranks. Tables that the tuner wrote are too long to be sent whole.
std::string select_text(const std::string& select) {
  constexpr std::size_t kShort = 200;
  if (select.size() <= kShort) return fmt::format("\"{}\"", select);
  const std::string digest = hex64(xxh3(std::as_bytes(std::span(select))));
  return fmt::format("of {} bytes with the hash {}", select.size(), digest);
}

/// Replaces bytes that are not UTF-8 (in a host name, in a message of the system) instead of failing.
std::string to_text(const json& object) { return object.dump(-1, ' ', false, json::error_handler_t::replace); }

/// A field of another rank's text, which may be anything.
std::optional<std::string> text_field(const json& object, const char* name) {
  if (!object.is_object() || !object.contains(name) || !object[name].is_string()) return std::nullopt;
  return object[name].get<std::string>();
}

/// Returns `field` of the text of rank `from`; fails unless that rank has the same terms and sent the field. Other
/// ranks may pass the error on, so it numbers this rank too.
Result<std::string> read_text(const JoinRequest& request, const std::string& my_terms, Rank from,
                              const std::string& text, const char* field) {
  const GroupOptions& options = request.options;
  const json theirs = json::parse(text, nullptr, false);
  if (const std::optional<std::string> why = text_field(theirs, "error"))
    return Status(StatusCode::kPeerLost,
                  fmt::format("{}: rank {} does not take part: {}", in_group(options), from, *why), {from});
  const std::optional<std::string> its_terms = text_field(theirs, "terms");
  std::optional<std::string> value = text_field(theirs, field);
  if (!its_terms || !value)
    return Status(StatusCode::kMismatch, fmt::format("{}: rank {} speaks another protocol", in_group(options), from),
                  {from});
  if (*its_terms != my_terms)
    return Status(
        StatusCode::kMismatch,
        fmt::format("{}: rank {} has {}; rank {} has {}", in_group(options), from, *its_terms, request.rank, my_terms),
        {from});
  return *std::move(value);
}

Result<std::vector<topology::Place>> meet(const JoinRequest& request, const std::string& my_terms,
                                          const Exchange& exchange) {
  ACCORD_ASSIGN_OR_RETURN(const topology::Place mine, topology::this_place());
  const json hello = {{"terms", my_terms}, {"place", topology::to_json(mine)}};
  std::vector<topology::Place> places;
  ACCORD_RETURN_IF_ERROR(exchange(kHello, to_text(hello), [&](Rank from, const std::string& text) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const std::string its_place, read_text(request, my_terms, from, text, "place"));
    ACCORD_ASSIGN_OR_RETURN(topology::Place place, topology::place_from_json(its_place));
    places.push_back(std::move(place));
    return {};
  }));
  return places;
}

struct Opened {
  std::string descriptors;  ///< of all ranks, in rank order
  std::unique_ptr<transport::Endpoint> endpoint;
  std::vector<transport::PeerDescriptor> peers;
};

// Takes part in the exchange even if the endpoint did not open: the ranks of the other groups that a split creates
// wait for it as well.
Result<Opened> open_endpoint(const Result<Fabric>& fabric, const transport::EndpointRequest& endpoint,
                             const JoinRequest& request, const std::string& my_terms, const Exchange& exchange) {
  Result<std::unique_ptr<transport::Endpoint>> mine = fabric.ok() ? fabric->transport->open(endpoint) : fabric.status();
  const std::string address = mine.ok() ? to_text({{"terms", my_terms}, {"descriptor", (*mine)->descriptor()}})
                                        : refusal(mine.status().with_context("it cannot open its endpoint"));
  Opened opened;
  ACCORD_RETURN_IF_ERROR(exchange("address", address, [&](Rank from, const std::string& text) -> Status {
    const Result<std::string> descriptor = read_text(request, my_terms, from, text, "descriptor");
    if (!descriptor.ok())
      return mine.ok() ? descriptor.status()
                       : Status(mine.status().code(), descriptor.status().message(), descriptor.status().ranks());
    opened.descriptors += *descriptor + '\n';
    if (from != endpoint.rank) opened.peers.push_back({from, *descriptor});
    return {};
  }));
  opened.endpoint = std::move(*mine);
  return opened;
}

// The id is unique: a transport never creates the same descriptor twice in a process, and process numbers are unique
// within one process space of a host.
std::uint64_t id_of(const topology::Topology& topology, std::string descriptors) {
  for (const Rank r : topology.ranks())
    descriptors +=
        fmt::format("{} {} {}\n", topology.place(r).host, topology.place(r).process_space, topology.place(r).process);
  return xxh3(std::as_bytes(std::span(descriptors)));
}

}  // namespace

std::string terms(const JoinRequest& request) {
  return fmt::format("protocol {}, {} ranks, transport \"{}\", select {}, slots of {} bytes{}", kProtocol, request.size,
                     request.options.transport, select_text(request.options.select), request.options.hints.slot_bytes,
                     device_terms(request.options.hints));
}

Status check(const JoinRequest& request) {
  if (request.size < 1 || request.rank < 0 || request.rank >= request.size)
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: rank {} does not exist in a group of {} ranks",
                                                            in_group(request.options), request.rank, request.size));
  if (request.size > kMaxRanks)
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {} ranks are more than the {} that a group may have",
                                                            in_group(request.options), request.size, kMaxRanks));
  if (request.options.transport != "auto") {
    const Status known = transport::transport_by_name(request.options.transport).status();
    if (!known.ok()) return known.with_context(in_group(request.options));
  }
  const Status readable = plan::Selector::create(request.options.select).status();
  return readable.ok() ? readable : readable.with_context(in_group(request.options));
}

std::string refusal(const Status& why) { return to_text({{"error", why.message().substr(0, kMaxText / 2)}}); }

void decline(JoinRequest request, std::shared_ptr<Store> store, const Status& why) {
  if (request.rank < 0 || request.rank >= request.size || request.size == 1) return;
  request.deadline = Deadline::in(std::min<Duration>(request.deadline.remaining(), kDeclineTimeout));
  // Ends with the first text, that of rank 0: nothing is needed from the others.
  (void)store_exchange(std::move(store), request)(kHello, refusal(why), [&](Rank, const std::string&) { return why; });
}

Result<std::shared_ptr<Group>> join(const JoinRequest& request, const Exchange& exchange) {
  ACCORD_RETURN_IF_ERROR(config().status());
  ACCORD_RETURN_IF_ERROR(check(request));
  ACCORD_ASSIGN_OR_RETURN(std::vector<topology::Place> places, meet(request, terms(request), exchange));
  return connect(request, topology::Topology(std::move(places)), exchange);
}

Result<std::shared_ptr<Group>> connect(const JoinRequest& request, topology::Topology topology,
                                       const Exchange& exchange) {
  const GroupOptions& options = request.options;
  const exec::WindowLayout layout(request.size, request.options.hints.slot_bytes);
  ACCORD_ASSIGN_OR_RETURN(plan::Selector selector, plan::Selector::create(options.select));
  const transport::EndpointRequest endpoint{.rank = request.rank, .size = request.size, .window_bytes = layout.bytes()};
  const Result<Fabric> fabric = choose_transport(topology, options);
  ACCORD_ASSIGN_OR_RETURN(Opened opened, open_endpoint(fabric, endpoint, request, terms(request), exchange));
  Result<std::vector<std::unique_ptr<transport::Link>>> connected =
      opened.endpoint->connect(opened.peers, request.deadline);
  if (!connected.ok()) return connected.status().with_context(in_group(options));
  std::vector<std::unique_ptr<transport::Link>> links(static_cast<std::size_t>(request.size));
  for (auto& link : *connected) links[link->peer()] = std::move(link);
  if (!fabric->maps) topology = topology.without_shared_memory();
  if (request.rank == 0 && explains()) explain(describe_group(options.name, fabric->transport->name(), topology));
  const auto id = id_of(topology, std::move(opened.descriptors));
  Result<std::shared_ptr<Group>> made = Group::create(Membership{.id = id,
                                                                 .rank = request.rank,
                                                                 .topology = std::move(topology),
                                                                 .selector = std::move(selector),
                                                                 .layout = layout,
                                                                 .transport = fabric->transport,
                                                                 .endpoint = std::move(opened.endpoint),
                                                                 .links = std::move(links)},
                                                      options);
  if (!made.ok()) return made.status().with_context(in_group(options));
  return made;
}

}  // namespace accord::comm
