#pragma once
// The processor's model name.

#include <string>

namespace accord::topology {

/// "AMD EPYC 9575F"; the architecture ("aarch64") if the processor's name is not known.
std::string processor_name();

}  // namespace accord::topology
