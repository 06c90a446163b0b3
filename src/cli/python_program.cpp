#include "cli/python_program.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace accord::cli {

Status become_python(const std::string& module, const std::vector<std::string>& words) {
  const char* python = std::getenv("PYTHON_EXEC");  // torchrun's too
  std::vector<std::string> command = {python == nullptr ? "python3" : python, "-m", module};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  return Status(StatusCode::kNotFound, command[0] + ": " + std::strerror(errno));
}

}  // namespace accord::cli
