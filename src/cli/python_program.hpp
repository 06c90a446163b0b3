#pragma once
// Commands that need PyTorch, or what else Python alone knows.

#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord::cli {

/// Becomes `python -m MODULE WORDS...`, with the Python that `accord run` would start; returns only if that cannot be.
Status become_python(const std::string& module, const std::vector<std::string>& words);

}  // namespace accord::cli
