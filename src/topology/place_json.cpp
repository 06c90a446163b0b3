// The text form of a Place: one JSON object with the names of Place's fields. It comes from another process, so every
// field is checked: present, of its type, in range, lists ascending. Unknown names are rejected.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "topology/topology.hpp"

namespace accord::topology {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 8> kFields = {"host",  "process",  "cpus",   "numa_nodes",
                                                     "cores", "core_ids", "reader", "process_space"};
constexpr std::size_t kMaxTextBytes = std::size_t{8} << 20;
constexpr std::size_t kMaxHostBytes = 512;

Status corrupt(std::string message) {
  return Status(StatusCode::kCorrupt, "the place of a rank: " + std::move(message));
}

Status read_number(const Json& value, std::string_view name, int lowest, int& number) {
  const bool in_range = value.is_number_unsigned() && value.get<std::uint64_t>() <= std::numeric_limits<int>::max();
  if (!in_range || value.get<int>() < lowest) {
    return corrupt(
        fmt::format("\"{}\" is not a whole number from {} to {}", name, lowest, std::numeric_limits<int>::max()));
  }
  number = value.get<int>();
  return Status();
}

Status read_numbers(const Json& value, std::string_view name, std::vector<int>& numbers) {
  if (!value.is_array()) return corrupt(fmt::format("\"{}\" is not a list", name));
  for (const Json& element : value) {
    int number = 0;
    ACCORD_RETURN_IF_ERROR(read_number(element, name, 0, number));
    if (!numbers.empty() && numbers.back() >= number) return corrupt(fmt::format("\"{}\" is not ascending", name));
    numbers.push_back(number);
  }
  return Status();
}

Status check_consistent(const Place& place) {
  if (place.host.empty() || place.host.size() > kMaxHostBytes) return corrupt("\"host\" is empty or too long");
  if (place.reader.size() > kMaxHostBytes) return corrupt("\"reader\" is too long");
  if (place.process_space.size() > kMaxHostBytes) return corrupt("\"process_space\" is too long");
  if (place.cpus.empty()) return corrupt("\"cpus\" is empty");
  const auto cores = static_cast<std::size_t>(place.cores);
  if (cores > place.cpus.size()) {
    return corrupt(fmt::format("{} cores of {} processors", place.cores, place.cpus.size()));
  }
  if (!place.core_ids.empty() && place.core_ids.size() != cores) {
    return corrupt(fmt::format("\"core_ids\" has {} entries for {} cores", place.core_ids.size(), place.cores));
  }
  return Status();
}

}  // namespace

std::string to_json(const Place& place) {
  const Json object = {{"host", place.host},     {"process", place.process},
                       {"cpus", place.cpus},     {"numa_nodes", place.numa_nodes},
                       {"cores", place.cores},   {"core_ids", place.core_ids},
                       {"reader", place.reader}, {"process_space", place.process_space}};
  return object.dump(-1, ' ', true, Json::error_handler_t::replace);
}

Result<Place> place_from_json(std::string_view text) {
  if (text.size() > kMaxTextBytes) return corrupt(fmt::format("{} of text", bytes_text(text.size())));
  const Json object = Json::parse(text, nullptr, false);
  if (!object.is_object()) return corrupt("expected a JSON object, found " + quoted_text(text));
  for (const auto& [name, value] : object.items()) {
    if (std::find(kFields.begin(), kFields.end(), name) == kFields.end()) {
      return corrupt(unknown_name("field", name, kFields).message());
    }
  }
  for (const std::string_view field : kFields) {
    if (!object.contains(field)) return corrupt(fmt::format("\"{}\" is missing", field));
  }
  if (!object["host"].is_string()) return corrupt("\"host\" is not a string");
  Place place;
  if (!object["reader"].is_string()) return corrupt("\"reader\" is not a string");
  if (!object["process_space"].is_string()) return corrupt("\"process_space\" is not a string");
  place.host = object["host"].get<std::string>();
  place.process_space = object["process_space"].get<std::string>();
  place.reader = object["reader"].get<std::string>();
  ACCORD_RETURN_IF_ERROR(read_number(object["process"], "process", 0, place.process));
  ACCORD_RETURN_IF_ERROR(read_number(object["cores"], "cores", 1, place.cores));
  ACCORD_RETURN_IF_ERROR(read_numbers(object["cpus"], "cpus", place.cpus));
  ACCORD_RETURN_IF_ERROR(read_numbers(object["numa_nodes"], "numa_nodes", place.numa_nodes));
  ACCORD_RETURN_IF_ERROR(read_numbers(object["core_ids"], "core_ids", place.core_ids));
  ACCORD_RETURN_IF_ERROR(check_consistent(place));
  return place;
}

}  // namespace accord::topology
