#pragma once
// Which instruction set the vector kernels run on.

#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord::kernels {

/// The name of the instruction set that kernels run on here, e.g. "AVX3".
const char* instruction_set();

/// Those for which this build has kernels and which this machine can run, best first.
std::vector<std::string> instruction_sets();

/// Makes later calls run on the instruction set of that name, for tests and measurements; "" goes back to the best one.
/// kInvalidArgument if it is none of instruction_sets(). Function pointers taken before keep theirs.
Status use_instruction_set(std::string_view name);

}  // namespace accord::kernels
