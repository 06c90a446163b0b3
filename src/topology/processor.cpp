// On x86, Linux gives the name in /proc/cpuinfo ("model name"); on other architectures often not.
#include "topology/processor.hpp"

#include <sys/utsname.h>

#include <fstream>

namespace accord::topology {

std::string processor_name() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    if (value != std::string::npos) return line.substr(value);
  }
  utsname system = {};
  return uname(&system) == 0 ? system.machine : "unknown";
}

}  // namespace accord::topology
