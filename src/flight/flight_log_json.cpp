// The dump format. Text that is read may come from anywhere: each field is looked up by name and type, and an error
// says where it is.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/hash.hpp"
#include "flight/flight_log.hpp"
#include "plan/collective.hpp"

namespace accord::flight {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kFormat = "accord flight log";

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

constexpr std::array<std::string_view, 4> kPhases = {"equal_parts", "counts_first", "unequal_parts",
                                                     "registered"};  // by exec::Phase

ordered_json to_json(const Operation& operation, bool is_message) {
  const exec::RequestRecord& request = operation.request;
  const plan::CollectiveTraits& traits = plan::traits_of(request.collective);
  return {{"number", operation.number},
          {"state", to_string(operation.state)},
          {"collective", to_string(request.collective)},
          {"phase", kPhases[static_cast<std::size_t>(request.phase)]},
          {"parts", request.parts == 0 ? ordered_json() : ordered_json(hex64(request.parts))},
          {"dtype", to_string(request.dtype)},
          {"op", traits.reduces ? ordered_json(to_string(request.op)) : ordered_json()},
          {"root", traits.rooted && !is_message ? ordered_json(request.root) : ordered_json()},
          {"tag", is_message ? ordered_json(request.root) : ordered_json()},
          {"count", request.count},
          {"bytes", request.count * size_of(request.dtype)},
          {"algorithm", operation.algorithm.empty() ? ordered_json() : ordered_json(operation.algorithm)},
          {"queued_ns", or_null(operation.queued_ns)},
          {"started_ns", or_null(operation.started_ns)},
          {"ended_ns", or_null(operation.ended_ns)},
          {"waits_for", or_null(operation.waits_for)}};
}

constexpr std::array<std::string_view, 3> kKinds = {"collectives", "send", "receive"};  // by Direction

ordered_json to_json(const Order& order) {
  ordered_json operations = ordered_json::array();
  for (const Operation& operation : order.operations)
    operations.push_back(to_json(operation, order.direction != Direction::kNone));
  return {{"kind", kKinds[static_cast<std::size_t>(order.direction)]},
          {"peer", order.direction == Direction::kNone ? ordered_json() : ordered_json(order.peer)},
          {"operations", std::move(operations)}};
}

ordered_json to_json(const Counters& counters) {
  ordered_json collectives = ordered_json::object();
  for (int c = 0; c < kCollectiveCount; ++c) {
    const Counters::Of& of = counters.of(static_cast<Collective>(c));
    if (of.calls > 0)
      collectives[std::string(to_string(static_cast<Collective>(c)))] = {{"calls", of.calls}, {"bytes", of.bytes}};
  }
  return {{"failures", counters.failures},
          {"waits", counters.waits},
          {"queued", counters.queued},
          {"by_collective", std::move(collectives)}};
}

/// Thrown only within this file.
struct ParseError {
  std::string what;
};

const ordered_json& field(const ordered_json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) throw ParseError{fmt::format("\"{}\" is missing", name)};
  return object[name];
}

template <typename T>
T read(const ordered_json& object, const char* name) {
  const ordered_json& value = field(object, name);
  bool fits = false;
  if constexpr (std::is_same_v<T, std::string>) {
    fits = value.is_string();
  } else if constexpr (std::is_unsigned_v<T>) {
    fits = value.is_number_unsigned();
  } else {
    fits = value.is_number_integer();
  }
  if (!fits) throw ParseError{fmt::format("\"{}\" is of the wrong type", name)};
  return value.get<T>();
}

template <typename T>
std::optional<T> read_or_null(const ordered_json& object, const char* name) {
  if (field(object, name).is_null()) return std::nullopt;
  return read<T>(object, name);
}

const ordered_json& list(const ordered_json& object, const char* name) {
  const ordered_json& value = field(object, name);
  if (!value.is_array()) throw ParseError{fmt::format("\"{}\" is not a list", name)};
  return value;
}

template <typename T>
T or_parse_error(Result<T> result) {
  if (!result.ok()) throw ParseError{result.status().message()};
  return std::move(result).value();
}

/// The enumerator that is written as `name`; `all` lists them.
template <typename Enum, std::size_t n>
Enum named(const ordered_json& object, const char* what, const std::array<Enum, n>& all) {
  const auto name = read<std::string>(object, what);
  for (const Enum value : all)
    if (to_string(value) == name) return value;
  throw ParseError{fmt::format("\"{}\" is \"{}\", which is not known", what, name)};
}

Rank read_rank(const ordered_json& object, const char* name, int size) {
  const auto rank = read<std::int64_t>(object, name);
  if (rank < 0 || rank >= size) throw ParseError{fmt::format("\"{}\" is {}, with {} ranks", name, rank, size)};
  return static_cast<Rank>(rank);
}

exec::Phase read_phase(const ordered_json& json) {
  const auto name = read<std::string>(json, "phase");
  const auto phase = std::find(kPhases.begin(), kPhases.end(), name);
  if (phase == kPhases.end()) throw ParseError{fmt::format("\"phase\" is \"{}\", which is not known", name)};
  return static_cast<exec::Phase>(phase - kPhases.begin());
}

Operation read_operation(const ordered_json& json, int size) {
  constexpr std::array kStates = {OperationState::kQueued, OperationState::kRunning, OperationState::kDone,
                                  OperationState::kFailed};
  Operation operation;
  operation.number = read<std::uint64_t>(json, "number");
  operation.state = named(json, "state", kStates);
  operation.request.collective = or_parse_error(collective_from_string(read<std::string>(json, "collective")));
  operation.request.phase = read_phase(json);
  if (const auto parts = read_or_null<std::string>(json, "parts"))
    operation.request.parts = std::strtoull(parts->c_str(), nullptr, 16);
  operation.request.dtype = or_parse_error(dtype_from_string(read<std::string>(json, "dtype")));
  if (const auto op = read_or_null<std::string>(json, "op"))
    operation.request.op = or_parse_error(reduce_op_from_string(*op));
  if (!field(json, "root").is_null()) operation.request.root = read_rank(json, "root", size);
  // Dumps of the first version have no tags.
  if (json.contains("tag") && !json["tag"].is_null()) operation.request.root = read_rank(json, "tag", INT32_MAX);
  operation.request.count = read<std::uint64_t>(json, "count");
  operation.algorithm = read_or_null<std::string>(json, "algorithm").value_or("");
  operation.queued_ns = read_or_null<std::int64_t>(json, "queued_ns");
  operation.started_ns = read_or_null<std::int64_t>(json, "started_ns");
  operation.ended_ns = read_or_null<std::int64_t>(json, "ended_ns");
  if (!field(json, "waits_for").is_null()) operation.waits_for = read_rank(json, "waits_for", size);
  return operation;
}

Order read_order(const ordered_json& json, int size) {
  const auto kind = read<std::string>(json, "kind");
  Order order;
  if (kind == kKinds[1]) order.direction = Direction::kSend;
  if (kind == kKinds[2]) order.direction = Direction::kReceive;
  if (order.direction == Direction::kNone && kind != kKinds[0])
    throw ParseError{fmt::format("\"kind\" is \"{}\", which is not known", kind)};
  if (order.direction != Direction::kNone) order.peer = read_rank(json, "peer", size);
  for (const ordered_json& operation : list(json, "operations"))
    order.operations.push_back(read_operation(operation, size));
  return order;
}

Counters counters_from_json(const ordered_json& json) {
  Counters counters;
  counters.failures = read<std::uint64_t>(json, "failures");
  counters.waits = read<std::uint64_t>(json, "waits");
  counters.queued = read<std::uint64_t>(json, "queued");
  const ordered_json& collectives = field(json, "by_collective");
  if (!collectives.is_object()) throw ParseError{"\"by_collective\" is not an object"};
  for (const auto& [name, value] : collectives.items()) {
    const Collective collective = or_parse_error(collective_from_string(name));
    counters.by_collective[static_cast<std::size_t>(collective)] = {.calls = read<std::uint64_t>(value, "calls"),
                                                                    .bytes = read<std::uint64_t>(value, "bytes")};
  }
  return counters;
}

std::optional<Failure> read_failure(const ordered_json& json) {
  if (json.is_null()) return std::nullopt;
  Failure failure;
  const auto code = read<std::string>(json, "code");
  for (int c = 0; c <= static_cast<int>(StatusCode::kInternal); ++c)
    if (to_string(static_cast<StatusCode>(c)) == code) failure.code = static_cast<StatusCode>(c);
  failure.message = read<std::string>(json, "message");
  for (const ordered_json& rank : list(json, "ranks")) {
    if (!rank.is_number_integer()) throw ParseError{"\"ranks\" contains a value that is not a number"};
    failure.ranks.push_back(rank.get<Rank>());
  }
  failure.at_ns = read<std::int64_t>(json, "at_ns");
  return failure;
}

FlightLog read_log(const ordered_json& json) {
  constexpr std::array kStates = {CommunicatorState::kReady, CommunicatorState::kFailed, CommunicatorState::kClosed};
  FlightLog log;
  log.id = read<std::string>(json, "communicator");
  log.name = read<std::string>(json, "name");
  for (const ordered_json& peer : list(json, "ranks"))
    log.peers.push_back({.process = read<int>(peer, "process"), .host = read<int>(peer, "host")});
  if (log.peers.empty()) throw ParseError{"\"ranks\" is empty"};
  log.rank = read_rank(json, "rank", log.size());
  log.host = read<std::string>(json, "host");
  log.state = named(json, "state", kStates);
  log.failure = read_failure(field(json, "failure"));
  log.created_ns = read<std::int64_t>(json, "created_ns");
  log.taken_ns = read<std::int64_t>(json, "taken_ns");
  log.taken_unix_ns = read<std::int64_t>(json, "taken_unix_ns");
  log.counters = counters_from_json(field(json, "counters"));
  for (const ordered_json& order : list(json, "orders")) log.orders.push_back(read_order(order, log.size()));
  return log;
}

}  // namespace

std::string to_json(const FlightLog& log) {
  ordered_json failure;
  if (log.failure)
    failure = {{"code", to_string(log.failure->code)},
               {"message", log.failure->message},
               {"ranks", log.failure->ranks},
               {"at_ns", log.failure->at_ns}};
  ordered_json ranks = ordered_json::array();
  for (const Peer& peer : log.peers) ranks.push_back({{"process", peer.process}, {"host", peer.host}});
  ordered_json orders = ordered_json::array();
  for (const Order& order : log.orders) orders.push_back(to_json(order));
  const ordered_json json = {{"format", kFormat},
                             {"version", kDumpVersion},
                             {"communicator", log.id},
                             {"name", log.name},
                             {"rank", log.rank},
                             {"size", log.size()},
                             {"host", log.host},
                             {"ranks", std::move(ranks)},
                             {"state", to_string(log.state)},
                             {"failure", std::move(failure)},
                             {"created_ns", log.created_ns},
                             {"taken_ns", log.taken_ns},
                             {"taken_unix_ns", log.taken_unix_ns},
                             {"counters", to_json(log.counters)},
                             {"orders", std::move(orders)}};
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<FlightLog> flight_log_from_json(std::string_view text) {
  const ordered_json json = ordered_json::parse(text, nullptr, false);
  if (json.is_discarded()) return Status(StatusCode::kCorrupt, "it is not JSON, or is incomplete");
  try {
    if (!json.is_object() || !json.contains("format") || json["format"] != kFormat)
      return Status(StatusCode::kCorrupt, fmt::format("it is not an \"{}\"", kFormat));
    const auto version = read<std::int64_t>(json, "version");
    if (version != kDumpVersion)
      return Status(StatusCode::kUnsupported,
                    fmt::format("it is of version {}; this accord reads version {}", version, kDumpVersion));
    return read_log(json);
  } catch (const ParseError& error) {
    return Status(StatusCode::kCorrupt, error.what);
  }
}

}  // namespace accord::flight
