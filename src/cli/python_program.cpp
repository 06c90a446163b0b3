#include "cli/python_program.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace accord::cli {

std::string python_program() {
  const char* python = std::getenv("PYTHON_EXEC");
  return python == nullptr || *python == '\0' ? "python3" : python;
}

Status become_python(const std::string& module, const std::vector<std::string>& words) {
  std::vector<std::string> command = {python_program(), "-m", module};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  return Status(StatusCode::kNotFound, command[0] + ": " + std::strerror(errno));
}

}  // namespace accord::cli
