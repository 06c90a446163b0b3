#pragma once
// Processes that run the current test again: for libraries that do not survive a fork.

#include <gtest/gtest.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

namespace accord::testing {

/// Starts a process that runs the current test, with `variables` ("NAME=value") added to the environment. It inherits
/// descriptors that are not close-on-exec. Returns -1 if it cannot be started.
inline pid_t spawn_this_test(std::vector<std::string> variables) {
  const auto is_set = [&](const std::string& variable) {
    const std::string name = variable.substr(0, variable.find('=') + 1);
    return std::any_of(variables.begin(), variables.end(),
                       [&](const std::string& other) { return other.compare(0, name.size(), name) == 0; });
  };
  std::vector<char*> all;
  for (std::string& variable : variables) all.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (!is_set(*variable) && std::string(*variable).compare(0, 6, "GTEST_") != 0) all.push_back(*variable);
  all.push_back(nullptr);
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  std::string program = "/proc/self/exe";
  std::string filter = std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name();
  char* const arguments[] = {program.data(), filter.data(), nullptr};
  pid_t process = -1;
  return posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments, all.data()) == 0 ? process : -1;
}

}  // namespace accord::testing
