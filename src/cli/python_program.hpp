#pragma once
// Commands that need PyTorch, or what else Python alone knows.

#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord::cli {

/// The Python of programs that are started and asked about: PYTHON_EXEC (torchrun's too, and set by the script `accord`
/// of a Python package to the Python that it belongs to), or the python3 in PATH.
std::string python_program();

/// Becomes `python -m MODULE WORDS...`, with python_program(); returns only if that cannot be.
Status become_python(const std::string& module, const std::vector<std::string>& words);

}  // namespace accord::cli
