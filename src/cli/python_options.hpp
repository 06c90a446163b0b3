#pragma once
// Options of commands that are Python programs: the command describes and checks them, and passes them on.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace accord::cli {

enum class PythonValue : std::uint8_t { kText, kPositive, kNonNegative, kFlag };

struct PythonOption {
  const char* names;  ///< the last one is passed on
  PythonValue value;
  const char* meaning;
};

/// The options that the user gives, by the last name. Copies share them.
class PythonOptions {
 public:
  /// Adds the options to `command`.
  PythonOptions(CLI::App& command, std::span<const PythonOption> options);
  /// Returns the arguments for the program, without positional ones.
  std::vector<std::string> words() const;

 private:
  struct Given {
    std::map<std::string, std::string> values;
    std::map<std::string, bool> flags;
  };

  std::shared_ptr<Given> given_ = std::make_shared<Given>();
};

}  // namespace accord::cli
