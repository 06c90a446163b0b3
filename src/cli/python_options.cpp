#include "cli/python_options.hpp"

#include <fmt/format.h>

#include "cli/number_checks.hpp"

namespace accord::cli {
namespace {

std::string last_name(const PythonOption& option) {
  const std::string names = option.names;
  return names.substr(names.rfind(',') + 1);  // npos + 1 is 0
}

}  // namespace

PythonOptions::PythonOptions(CLI::App& command, std::span<const PythonOption> options) {
  for (const PythonOption& option : options) {
    const std::string name = last_name(option);
    if (option.value == PythonValue::kFlag) {
      command.add_flag(option.names, given_->flags[name], option.meaning);
      continue;
    }
    CLI::Option* added = command.add_option(option.names, given_->values[name], option.meaning);
    if (option.value == PythonValue::kPositive) added->check(positive_number());
    if (option.value == PythonValue::kNonNegative) added->check(non_negative_number());
  }
}

std::vector<std::string> PythonOptions::words() const {
  std::vector<std::string> words;
  for (const auto& [name, value] : given_->values) {
    if (!value.empty()) words.push_back(fmt::format("{}={}", name, value));
  }
  for (const auto& [name, is_set] : given_->flags) {
    if (is_set) words.push_back(name);
  }
  return words;
}

}  // namespace accord::cli
