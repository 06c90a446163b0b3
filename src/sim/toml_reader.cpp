#include "sim/toml_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/text.hpp"

namespace accord::sim {

Status read_toml(std::string_view text, const std::function<Status(const toml::table&)>& read) try {
  return read(toml::parse(text));
} catch (const toml::parse_error& error) {
  return {StatusCode::kInvalidArgument, fmt::format("line {}: {}", error.source().begin.line, error.description())};
}

Status invalid_toml(const std::string& key, const toml::node* node, std::string_view problem) {
  const std::string line = node == nullptr ? "" : fmt::format(" (line {})", node->source().begin.line);
  return {StatusCode::kInvalidArgument, fmt::format("{}{}: {}", key, line, problem)};
}

Status check_tables(const toml::table& file, std::span<const std::string_view> names,
                    std::span<const std::string_view> required) {
  for (const auto& [key, node] : file) {
    const std::string name(key.str());
    if (std::find(names.begin(), names.end(), name) == names.end())
      return invalid_toml(name, &node, unknown_name("table", name, names).message());
    if (!node.is_table()) return invalid_toml(name, &node, "expected a table");
  }
  for (const std::string_view name : required)
    if (!file.contains(name)) return invalid_toml(std::string(name), nullptr, "is missing");
  return {};
}

void TomlReader::number(std::string_view key, double& value, double least, Need need) {
  const toml::node* node = find(key, need);
  if (node == nullptr) return;
  const std::optional<double> given = node->value<double>();
  if (!given || !std::isfinite(*given) || *given < least)
    return fail(key, node, fmt::format("expected a number of at least {}", least));
  value = *given;
}

void TomlReader::rate(std::string_view key, RateCurve& curve, Need need) {
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

void TomlReader::flag(std::string_view key, bool& value) {
  const toml::node* node = find(key, Need::kOptional);
  if (node == nullptr) return;
  if (!node->is_boolean()) return fail(key, node, "expected true or false");
  value = node->as_boolean()->get();
}

void TomlReader::count(std::string_view key, int& value, Need need, int least) {
  const toml::node* node = find(key, need);
  if (node != nullptr) value = whole(key, *node, least);
}

void TomlReader::counts(std::string_view key, std::vector<int>& values) {
  const toml::node* node = find(key, Need::kRequired);
  if (node == nullptr) return;
  if (!node->is_array() || node->as_array()->empty()) return fail(key, node, "expected a list of numbers");
  for (const toml::node& item : *node->as_array()) values.push_back(whole(key, item, 1));
}

std::string_view TomlReader::word(std::string_view key, std::span<const std::string_view> words, Need need) {
  const toml::node* node = find(key, need);
  if (node == nullptr) return words[0];
  const std::string given = node->value<std::string>().value_or("");
  const auto* found = std::find(words.data(), words.data() + words.size(), given);
  if (found != words.data() + words.size()) return *found;
  fail(key, node, node->is_string() ? unknown_name(std::string(key), given, words).message() : "expected a text");
  return words[0];
}

Status TomlReader::finish() {
  for (const auto& [key, node] : table_) {
    if (status_.ok() && std::find(known_.begin(), known_.end(), key.str()) == known_.end())
      fail(key.str(), &node, unknown_name("key", std::string(key.str()), known_).message());
  }
  return status_;
}

const toml::node* TomlReader::find(std::string_view key, Need need) {
  known_.push_back(key);
  const toml::node* node = table_.get(key);
  if (node == nullptr && need == Need::kRequired && status_.ok()) fail(key, nullptr, "is missing");
  return status_.ok() ? node : nullptr;
}

int TomlReader::whole(std::string_view key, const toml::node& node, int least) {
  const toml::value<std::int64_t>* const integer = node.as_integer();
  const std::int64_t given = integer == nullptr ? std::int64_t{least} - 1 : integer->get();
  if (given < least || given > std::numeric_limits<int>::max())
    fail(key, &node, fmt::format("expected a number from {}", least));
  return status_.ok() ? static_cast<int>(given) : 1;
}

void TomlReader::fail(std::string_view key, const toml::node* node, std::string_view problem) {
  if (status_.ok()) status_ = invalid_toml(fmt::format("{}.{}", name_, key), node, problem);
}

}  // namespace accord::sim
