// Connects with one all_gather of texts: the terms, and how to reach each rank's one endpoint. A group is a part of
// that endpoint's window on each of its ranks (transport/view_endpoint.hpp), so a rank creates it without the others.
#include "comm/membership/shared_groups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"
#include "comm/membership/fabric.hpp"
#include "comm/membership/gather_texts.hpp"
#include "transport/view_endpoint.hpp"

namespace accord::comm {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTerms = 900;

std::uint64_t hash_of(std::string_view text) { return xxh3(std::as_bytes(std::span(text))); }

/// The words of one text that the other lacks.
std::string words_of_one(const std::string& text, const std::string& other) {
  const auto words = [](const std::string& from) {
    const std::vector<std::string_view> found = split_text(from, ' ');
    return std::set<std::string_view>(found.begin(), found.end());
  };
  const std::set<std::string_view> here = words(text), there = words(other);
  std::vector<std::string_view> only;
  std::set_difference(here.begin(), here.end(), there.begin(), there.end(), std::back_inserter(only));
  return only.empty() ? "something that is not shown" : fmt::format("{}", fmt::join(only, " "));
}

struct Reply {
  std::string descriptor;
  Status failure;  ///< why this rank and all others give up
};

Reply read(const Group& parent, const SharedGroups::Request& request, const std::string& my_terms, Rank from,
           const std::string& text) {
  const json fields = json::parse(text, nullptr, false);
  const auto field = [&](const char* name) {
    return fields.is_object() && fields.contains(name) && fields[name].is_string() ? fields[name].get<std::string>()
                                                                                   : std::string();
  };
  const std::string where = in_group(request.options);
  if (const std::string why = field("error"); !why.empty())
    return {{},
            Status(StatusCode::kPeerLost, fmt::format("{}: rank {} does not take part: {}", where, from, why), {from})};
  if (field("hash") != hex64(hash_of(request.terms))) {
    const std::string theirs = field("terms");
    return {{},
            Status(StatusCode::kMismatch,
                   fmt::format("{}: rank {} has {}; rank {} has {}", where, from, words_of_one(theirs, my_terms),
                               parent.rank(), words_of_one(my_terms, theirs)),
                   {from})};
  }
  return {field("descriptor"), {}};
}

Result<std::vector<std::string>> gather_replies(Group& parent, const json& mine, Duration timeout) {
  return gather_texts(parent, mine.dump(-1, ' ', false, json::error_handler_t::replace), timeout);
}

json refusal_reply(std::string_view why) { return {{"error", why.substr(0, kMaxTerms)}}; }

}  // namespace

std::size_t SharedGroups::bytes(int ranks, std::size_t slot_bytes) {
  return transport::view_bytes(static_cast<std::size_t>(ranks), exec::WindowLayout(ranks, slot_bytes).bytes());
}

/// This rank's side of the connection.
struct SharedGroups::Connection {
  Rank rank = 0;
  std::uint64_t id = 0;
  Fabric fabric;
  topology::Topology topology;
  std::shared_ptr<transport::SharedEndpoint> endpoint;
  std::weak_ptr<Group> parent;

  transport::ViewRequest view_of(const SharedPlace& place, std::size_t window_bytes) const {
    const auto me = std::find(place.ranks.begin(), place.ranks.end(), rank) - place.ranks.begin();
    return {.ranks = place.ranks, .rank = static_cast<Rank>(me), .offset = place.offset, .window_bytes = window_bytes};
  }
};

SharedGroups::SharedGroups(std::unique_ptr<const Connection> connection) : connection_(std::move(connection)) {}

SharedGroups::~SharedGroups() = default;

Result<std::shared_ptr<SharedGroups>> SharedGroups::connect(Group& parent, const Request& request) {
  const Deadline deadline = Deadline::in(request.options.timeout);
  const auto is_member = [&](Rank rank) { return rank >= request.first && rank - request.first < request.size; };
  const bool participates = is_member(parent.rank());
  const Rank me = parent.rank() - request.first;
  std::optional<topology::Topology> topology;
  Fabric fabric;
  std::unique_ptr<transport::Endpoint> endpoint;
  Status failure = request.refused;
  if (failure.ok() && participates) {
    std::vector<topology::Place> places;
    places.reserve(static_cast<std::size_t>(request.size));
    for (Rank rank = 0; rank < request.size; ++rank) places.push_back(parent.topology().place(request.first + rank));
    topology.emplace(std::move(places));
    failure = [&]() -> Status {
      ACCORD_ASSIGN_OR_RETURN(fabric, choose_transport(*topology, request.options));
      const std::size_t bytes = std::max<std::size_t>(request.window_bytes, 1);
      ACCORD_ASSIGN_OR_RETURN(endpoint,
                              fabric.transport->open({.rank = me, .size = request.size, .window_bytes = bytes}));
      return {};
    }();
  }
  const std::string terms = request.terms.substr(0, kMaxTerms);
  json mine = {{"hash", hex64(hash_of(request.terms))}, {"terms", terms}};
  if (!failure.ok()) {
    mine = refusal_reply(failure.message());
  } else if (participates) {
    mine["descriptor"] = endpoint->descriptor();
  }
  const Result<std::vector<std::string>> texts = gather_replies(parent, mine, deadline.remaining());
  ACCORD_RETURN_IF_ERROR(failure);
  ACCORD_RETURN_IF_ERROR(texts.status());
  std::string identity;
  std::vector<transport::PeerDescriptor> peers;
  for (Rank rank = 0; rank < parent.size(); ++rank) {
    Reply reply = read(parent, request, terms, rank, (*texts)[static_cast<std::size_t>(rank)]);
    if (!reply.failure.ok()) return reply.failure;
    if (!is_member(rank)) continue;
    identity += reply.descriptor + '\n';
    if (rank != parent.rank()) peers.push_back({rank - request.first, std::move(reply.descriptor)});
  }
  if (!participates) return std::shared_ptr<SharedGroups>();
  Result<std::vector<std::unique_ptr<transport::Link>>> links = endpoint->connect(peers, deadline);
  if (!links.ok()) return links.status().with_context(in_group(request.options));
  for (const Rank rank : topology->ranks())
    identity += fmt::format("{} {}\n", topology->place(rank).host, topology->place(rank).process);
  auto shared = std::make_shared<transport::SharedEndpoint>(std::move(endpoint), *std::move(links));
  return std::shared_ptr<SharedGroups>(
      new SharedGroups(std::make_unique<const Connection>(Connection{.rank = me,
                                                                     .id = hash_of(identity),
                                                                     .fabric = std::move(fabric),
                                                                     .topology = *std::move(topology),
                                                                     .endpoint = std::move(shared),
                                                                     .parent = parent.handle()})));
}

Status SharedGroups::decline(Group& parent, const GroupOptions& options, std::string_view why) {
  return gather_replies(parent, refusal_reply(why), options.timeout).status();
}

void SharedGroups::leave(const SharedPlace& place) const {
  if (place.ranks.size() > 1) transport::leave_view(*connection_->endpoint, connection_->view_of(place, 0));
}

Result<std::shared_ptr<Group>> SharedGroups::make(const SharedPlace& place, const GroupOptions& options) const {
  const auto size = static_cast<int>(place.ranks.size());
  const exec::WindowLayout layout(size, options.hints.slot_bytes);
  ACCORD_ASSIGN_OR_RETURN(plan::Selector selector, plan::Selector::create(options.select));
  std::vector<topology::Place> places;
  for (const Rank rank : place.ranks) places.push_back(connection_->topology.place(rank));
  topology::Topology topology(std::move(places));
  const transport::ViewRequest request = connection_->view_of(place, layout.bytes());
  Fabric fabric = connection_->fabric;
  transport::View view;
  if (size > 1) {
    if (place.offset + bytes(size, options.hints.slot_bytes) > connection_->endpoint->window().size())
      return Status(StatusCode::kInternal,
                    fmt::format("{}: its place is beyond the end of the window", in_group(options)));
    view = transport::make_view(connection_->endpoint, request);
  } else {
    ACCORD_ASSIGN_OR_RETURN(fabric, choose_transport(topology, options));
    ACCORD_ASSIGN_OR_RETURN(view.endpoint,
                            fabric.transport->open({.rank = 0, .size = 1, .window_bytes = layout.bytes()}));
    ACCORD_RETURN_IF_ERROR(view.endpoint->connect({}, Deadline::in(options.timeout)).status());
    view.links.resize(1);
  }
  if (!fabric.maps) topology = topology.without_shared_memory();
  Result<std::shared_ptr<Group>> made = Group::create(
      Membership{.id = hash_of(fmt::format("{} {} {}", connection_->id, place.offset, fmt::join(place.ranks, ","))),
                 .rank = request.rank,
                 .topology = std::move(topology),
                 .selector = std::move(selector),
                 .layout = layout,
                 .transport = fabric.transport,
                 .endpoint = std::move(view.endpoint),
                 .links = std::move(view.links)},
      options);
  if (!made.ok()) return made.status().with_context(in_group(options));
  if (const std::shared_ptr<Group> parent = connection_->parent.lock()) parent->add_made(*made);
  return made;
}

}  // namespace accord::comm
