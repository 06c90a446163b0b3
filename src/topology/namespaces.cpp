#include "topology/namespaces.hpp"

#include <sys/stat.h>

#include <cerrno>

#include "base/fd.hpp"

namespace accord::topology {

Result<std::uint64_t> namespace_number(const std::string& kind) {
  const std::string path = "/proc/self/ns/" + kind;
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return errno_status(errno, path);
  return found.st_ino;
}

}  // namespace accord::topology
