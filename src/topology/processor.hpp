#pragma once
// What the processor calls itself.

#include <string>

namespace accord::topology {

/// "AMD EPYC 9575F"; of a processor that does not tell, its architecture ("aarch64").
std::string processor_name();

}  // namespace accord::topology
