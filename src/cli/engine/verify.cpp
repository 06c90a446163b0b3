// `accord engine verify`: reads every byte of a package and lists all damage, with a progress line on a terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accord/package.hpp"
#include "base/text.hpp"
#include "cli/engine/commands.hpp"

namespace accord::cli {
namespace {

void show_progress(std::uint64_t done, std::uint64_t all) {
  const bool ended = done >= all;
  fmt::print(stderr, "\r{:3.0f} % of {}{}",
             all == 0 ? 100.0 : 100.0 * static_cast<double>(done) / static_cast<double>(all), bytes_text(all),
             ended ? "\r\033[K" : "");
}

int verify(const std::string& path, bool as_json) {
  const bool on_terminal = isatty(STDERR_FILENO) != 0;
  const Result<std::vector<Damage>> found = verify_package(path, on_terminal ? show_progress : nullptr);
  if (!found.ok()) return engine_failure("verify", found.status());
  if (as_json) {
    auto damage = nlohmann::ordered_json::array();
    for (const Damage& place : *found) damage.push_back({{"file", place.file}, {"what", place.what}});
    const nlohmann::ordered_json answer = {{"package", path}, {"whole", found->empty()}, {"damage", std::move(damage)}};
    fmt::print("{}\n", answer.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    for (const Damage& place : *found) fmt::print("{}: {}\n", place.file, place.what);
    fmt::print("{}\n", found->empty() ? path + ": intact" : fmt::format("{}: {} damaged places", path, found->size()));
  }
  return found->empty() ? kSuccess : kFailure;
}

}  // namespace

void add_engine_verify(CLI::App& engine, Action& chosen) {
  struct Options {
    std::string path;
    bool as_json = false;
  };
  CLI::App* command = engine.add_subcommand("verify", "Read every byte of a package and list all damage");
  const auto options = std::make_shared<Options>();
  command->add_option("package", options->path, "The package's directory")->required();
  command->add_flag("--json", options->as_json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return verify(options->path, options->as_json); }; });
}

}  // namespace accord::cli
