// `accord engine cache`: Python manages the cache, so Python lists and clears it.
#include <memory>
#include <string>
#include <vector>

#include "cli/engine/commands.hpp"
#include "cli/python_program.hpp"

namespace accord::cli {
namespace {

struct CacheOptions {
  std::string directory;
  bool as_json = false;
};

int run(const std::string& what, const CacheOptions& options) {
  std::vector<std::string> words = {what};
  if (!options.directory.empty()) words.insert(words.end(), {"--directory", options.directory});
  if (options.as_json) words.emplace_back("--json");
  return engine_failure("cache", become_python("accord.engine_cache", words));
}

}  // namespace

void add_engine_cache(CLI::App& engine, Action& chosen) {
  CLI::App* cache = engine.add_subcommand("cache", "List or clear the compiled engines on disk");
  cache->require_subcommand(0, 1);
  for (const auto& [name, meaning] :
       {std::pair<const char*, const char*>{"list", "List the packages, the most recently used first"},
        {"clear", "Remove all packages that are not in use"}}) {
    CLI::App* command = cache->add_subcommand(name, meaning);
    const auto options = std::make_shared<CacheOptions>();
    command->add_option("--directory", options->directory, "The cache [$XDG_CACHE_HOME/accord/engines]");
    command->add_flag("--json", options->as_json, "One JSON object");
    command->callback(
        [what = std::string(name), options, &chosen] { chosen = [what, options] { return run(what, *options); }; });
  }
}

}  // namespace accord::cli
