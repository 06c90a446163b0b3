// Each message is a JSON object of its fields and "type", the name of its alternative in the Message variant. Reading
// finds the type in the same table, so the two cannot drift apart.
#include "cli/launch/messages.hpp"

#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/text.hpp"

namespace accord::cli {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Failure, node, rank, process, host, exit_code, signal, reason)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, version, run_id, nodes, node, ranks, elastic)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Failed, generation, failure)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Ended, generation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interrupted, signal)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Start, generation, node, first_rank, world_size, master_host, master_port,
                                   hosts_torch_store, job_store)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Stop, generation, signal, failure, restart)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finish, exit_code)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Refuse, reason)

namespace {

constexpr std::array<std::string_view, std::variant_size_v<Message>> kTypes = {
    "hello", "failed", "ended", "interrupted", "start", "stop", "finish", "refuse"};

template <std::size_t index = 0>
Result<Message> from_json(std::string_view type, const nlohmann::json& json) {
  if constexpr (index == kTypes.size()) {
    return unknown_name("message of a launcher", type, kTypes);
  } else {
    if (type == kTypes[index]) return Message(json.get<std::variant_alternative_t<index, Message>>());
    return from_json<index + 1>(type, json);
  }
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string to_string(const Failure& failure) {
  if (failure.rank < 0) return fmt::format("the launcher of node {}: {}", failure.node, failure.reason);
  std::string place = fmt::format("node {}, host \"{}\"", failure.node, failure.host);
  if (!failure.reason.empty()) return fmt::format("rank {} ({}): {}", failure.rank, place, failure.reason);
  place += fmt::format(", process {}", failure.process);
  if (failure.signal != 0) {
    return fmt::format("rank {} ({}) was killed by {}", failure.rank, place, signal_name(failure.signal));
  }
  return fmt::format("rank {} ({}) exited with code {}", failure.rank, place, failure.exit_code);
}

int exit_code_of(const Failure& failure) { return failure.signal != 0 ? 128 + failure.signal : failure.exit_code; }

std::string to_line(const Message& message) {
  nlohmann::json json = std::visit([](const auto& content) { return nlohmann::json(content); }, message);
  json["type"] = kTypes[message.index()];
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<Message> from_line(std::string_view line) {
  try {
    const nlohmann::json json = nlohmann::json::parse(line);
    return from_json(json.at("type").get<std::string>(), json);
  } catch (const nlohmann::json::exception& error) {
    return Status(StatusCode::kCorrupt, fmt::format("a launcher's message: {}", error.what()));
  }
}

}  // namespace accord::cli
