// `accord engine inspect`: prints the JSON of accord/package.hpp, as it is or as a table.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "accord/package.hpp"
#include "base/text.hpp"
#include "cli/engine/commands.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string shape_text(const Json& shape) {
  std::string text;
  for (const Json& dimension : shape) {
    text += (text.empty() ? "" : ", ") + (dimension.is_string() ? dimension.get<std::string>() : dimension.dump());
  }
  return "[" + text + "]";
}

std::string size_text(const Json& bytes) { return bytes_text(bytes.get<std::size_t>()); }

void print_package(const Json& json) {
  fmt::print("{}: format {}, by {}\n", json["package"].get<std::string>(), json["format_version"].get<int>(),
             json["producer"].get<std::string>());
  fmt::print("identity  {}\n", json["sha256"].get<std::string>());
  for (const char* kind : {"inputs", "outputs"}) {
    for (const Json& value : json[kind]) {
      fmt::print("{:<9} {:<24} {} {}\n", kind, value["name"].get<std::string>(), value["dtype"].get<std::string>(),
                 shape_text(value["shape"]));
    }
  }
  for (const Json& symbol : json["symbols"]) {
    fmt::print("symbol    {:<24} {} to {}\n", symbol["name"].get<std::string>(), symbol["min"].dump(),
               symbol["max"].dump());
  }
  for (const Json& rule : json["rules"]) {
    fmt::print("sharding  {}: {} in units of {} over \"{}\"\n", rule["pattern"].get<std::string>(),
               rule["style"].get<std::string>(), rule["unit"].dump(), rule["group"].get<std::string>());
  }
  fmt::print("weights   {} tensors, {}, of which {} are divided\n", json["tensors"].dump(),
             size_text(json["weight_bytes"]), size_text(json["sharded_bytes"]));
  for (const Json& name : json["adapters"]) fmt::print("adapter   {}\n", name.get<std::string>());
  for (const Json& path : json["references"]) fmt::print("refers to {}\n", path.get<std::string>());
  for (const Json& tensor : json["quantized"]) {
    const Json& error = tensor["error"];
    const auto group = tensor["group"].get<int>();
    fmt::print("quantized {:<40} {}{}{}, error {}\n", tensor["tensor"].get<std::string>(),
               tensor["type"].get<std::string>(),
               group == 0 ? " with a scale for each output" : fmt::format(" in groups of {}", group),
               tensor["minima"].get<bool>() ? " with minima" : "",
               error.is_null() ? "unknown" : fmt::format("{:.2f} %", 100 * error.get<double>()));
  }
  for (const Json& row : json["by_ranks"]) {
    const Json& bytes = row["weight_bytes_of_rank_0"];
    fmt::print("ranks {:<3} {}\n", row["ranks"].dump(),
               bytes.is_null()
                   ? fmt::format("too many ranks: there are units for at most {}", json["most_ranks"].dump())
                   : "rank 0 reads " + size_text(bytes));
  }
  for (const auto& [op, count] : json["ops"].items()) fmt::print("op        {:<40} {}\n", op, count.dump());
}

void print_program(const Json& json) {
  fmt::print("{}: program, format {}, by {}\n", json["package"].get<std::string>(), json["format_version"].get<int>(),
             json["producer"].get<std::string>());
  fmt::print("identity  {}\n", json["sha256"].get<std::string>());
  fmt::print("ranks     {}\n", json["world_size"].is_null() ? "any number" : json["world_size"].dump());
  const Json& ranks = json["program"];
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [group, members] : ranks[rank]["groups"].items()) {
      fmt::print("group     rank {}: {} {}\n", rank, group, members.dump());
    }
    for (const Json& part : ranks[rank]["parts"]) {
      fmt::print("part      {} ({}), {}\n", part["name"].get<std::string>(), part["runs_in"].get<std::string>(),
                 part["path"].get<std::string>());
      for (const auto& [op, count] : part["ops"].items()) fmt::print("  op      {:<40} {}\n", op, count.dump());
      for (const Json& reason : part["reasons"]) fmt::print("  because {}\n", reason.get<std::string>());
    }
  }
}

int inspect(const std::string& path, bool as_json) {
  const Result<std::string> json = inspect_package(path);
  if (!json.ok()) return engine_failure("inspect", json.status());
  if (as_json) {
    fmt::print("{}\n", *json);
    return kSuccess;
  }
  const Json parsed = Json::parse(*json);
  parsed.contains("program") ? print_program(parsed) : print_package(parsed);
  return kSuccess;
}

}  // namespace

void add_engine_inspect(CLI::App& engine, Action& chosen) {
  struct Options {
    std::string path;
    bool as_json = false;
  };
  CLI::App* command =
      engine.add_subcommand("inspect", "Show what a package contains: inputs, sharding, ops, bytes of each rank");
  const auto options = std::make_shared<Options>();
  command->add_option("package", options->path, "The package's directory")->required();
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return inspect(options->path, options->as_json); }; });
}

}  // namespace accord::cli
