// `accord`: parses the arguments, then runs the subcommand that they name. The answer to an unknown option or
// subcommand is the nearest one that exists.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "accord/info.hpp"
#include "base/text.hpp"
#include "cli/commands.hpp"

namespace accord::cli {
namespace {

// Returns the innermost subcommand that the arguments reached.
const CLI::App* innermost(const CLI::App& app) {
  const std::vector<CLI::App*> inner = app.get_subcommands();
  return inner.empty() ? &app : innermost(*inner.back());
}

std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
}

// Explains why `word` is invalid in `app`.
std::string unknown_word(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  const bool is_option = word.starts_with("-");
  if (is_option) {
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  } else {
    for (const CLI::App* inner : app.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(inner->get_name());
    if (names.empty()) return fmt::format("unexpected argument \"{}\"", word);
  }
  const std::vector<std::string_view> views(names.begin(), names.end());
  return unknown_name(is_option ? "option" : "command", word.substr(0, word.find('=')), views).message();
}

int explain(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  const CLI::App* reached = innermost(app);
  std::string message = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !reached->remaining().empty()) {
    message = unknown_word(*reached, reached->remaining().front());
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {  // "Could not convert: --seed = 1.5"
    const std::size_t option = message.find("--");
    if (option != std::string::npos) message = message.substr(option) + " is not a valid number for this option";
  }
  fmt::print(stderr, "{0}: {1}\nsee \"{0} --help\"\n", full_name(*reached), message);
  return kUsageError;
}

// Removes the arguments from the first "--" on. They belong to a program, and the parser would not keep them in
// order.
std::vector<std::string> extract_after_dashes(int& argc, char** argv) {
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));
  argc = static_cast<int>(dashes - argv);
  return {dashes, end};
}

// Prints the folder at `path` relative to this program. It does not exist in a build folder.
int print_folder(const char* path) {
  std::error_code unread;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unread);
  const std::filesystem::path folder = (program.parent_path() / path).lexically_normal();
  if (unread || !std::filesystem::is_directory(folder, unread)) {
    fmt::print(stderr, "accord: this accord is not installed: {} does not exist\n", folder.string());
    return kFailure;
  }
  fmt::print("{}\n", folder.string());
  return kSuccess;
}

int run(int argc, char** argv) {
  const std::vector<std::string> after_dashes = extract_after_dashes(argc, argv);
  CLI::App app("accord: collectives, launching and compiled model engines across ranks", "accord");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(0, 1);
  Action chosen;
  const auto print = [&chosen](const char* path) { chosen = [path] { return print_folder(path); }; };
  app.add_flag_callback(
      "--cmake-dir", [print] { print(ACCORD_CMAKE_DIR); }, "Print the folder in which CMake finds accord (accord_DIR)");
  app.add_flag_callback(
      "--include-dir", [print] { print(ACCORD_INCLUDE_DIR); }, "Print the folder of the headers");
  add_info(app, chosen);
  add_run(app, chosen, after_dashes);
  add_diagnose(app, chosen);
  add_engine(app, chosen);
  add_mesh(app, chosen);
  add_moe(app, chosen);
  add_plan(app, chosen);
  add_sim(app, chosen);
  add_bench(app, chosen);
  add_serve(app, chosen);
  add_tune(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain(app, error);
  }
  if (!chosen) {
    const CLI::App* reached = innermost(app);
    const CLI::App* parent = reached->get_parent();
    fmt::print(stderr, "{}", reached->help(parent == nullptr ? "" : full_name(*parent)));
    return kUsageError;
  }
  return chosen();
}

}  // namespace
}  // namespace accord::cli

int main(int argc, char** argv) {
  try {
    return accord::cli::run(argc, argv);
  } catch (const std::exception& error) {  // out of memory, or a bug in accord
    std::fprintf(stderr, "accord: %s\n", error.what());
    return accord::cli::kFailure;
  }
}
