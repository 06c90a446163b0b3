#pragma once
// Machines as text.

#include <string>
#include <utility>
#include <vector>

#include "sim/machine.hpp"

namespace accord::sim {

/// Returns the file that machine_from_toml() reads. `notes`: comments for keys such as "host.hop_seconds".
std::string to_toml(const Machine& machine, const std::vector<std::pair<std::string, std::string>>& notes = {});

}  // namespace accord::sim
