#pragma once
// Commands that need PyTorch, or something else that only Python knows.

#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord::cli {

/// The Python that runs programs and is asked about packages: PYTHON_EXEC, otherwise the python3 in PATH. torchrun
/// reads PYTHON_EXEC too, and the script `accord` of a Python package sets it to the Python that it belongs to.
std::string python_program();

/// Replaces this process by `python -m MODULE WORDS...`, with python_program(). Returns only if that fails.
Status become_python(const std::string& module, const std::vector<std::string>& words);

}  // namespace accord::cli
