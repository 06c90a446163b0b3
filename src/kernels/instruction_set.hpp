#pragma once
// The instruction set on which the vector kernels run.

#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord::kernels {

/// The name of the instruction set that kernels use on this machine, e.g. "AVX3".
const char* instruction_set();

/// The instruction sets for which this build has kernels and that this machine supports, best first.
std::vector<std::string> instruction_sets();

/// Makes later calls use the named instruction set, for tests and measurements; "" restores the best one.
/// Fails with kInvalidArgument if the name is not one of instruction_sets(). Function pointers obtained earlier are
/// unaffected.
Status use_instruction_set(std::string_view name);

}  // namespace accord::kernels
