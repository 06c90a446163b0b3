// The processors come from sched_getaffinity(): those that this process may use, after taskset, cpusets and
// containers. The host's name combines the kernel's boot id, different on every machine and after every boot; the
// inode of the network namespace, since containers of one machine find each other's sockets only within one; and
// ACCORD_HOST_ID.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "topology/cores.hpp"
#include "topology/namespaces.hpp"
#include "topology/reader.hpp"
#include "topology/topology.hpp"

namespace accord::topology {
namespace {

Result<std::vector<int>> usable_cpus() {
  // The kernel rejects a mask smaller than its own with EINVAL; no machine has more than a million processors.
  for (std::size_t limit = 1024; limit <= std::size_t{1} << 20; limit *= 4) {
    std::vector<unsigned char> mask(CPU_ALLOC_SIZE(limit), 0);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, mask.size(), set) != 0) {
      if (errno == EINVAL) continue;
      return errno_status(errno, "sched_getaffinity");
    }
    std::vector<int> cpus;
    for (std::size_t cpu = 0; cpu < 8 * mask.size(); ++cpu) {
      if (CPU_ISSET_S(cpu, mask.size(), set)) cpus.push_back(static_cast<int>(cpu));
    }
    return cpus;
  }
  return errno_status(EINVAL, "sched_getaffinity");
}

// Falls back to the host's name if the kernel hides its boot id.
Result<std::string> machine_id() {
  const Result<std::string> boot_id = read_file("/proc/sys/kernel/random/boot_id", 4096);
  if (boot_id.ok() && boot_id->size() > 1) return boot_id->substr(0, boot_id->find('\n'));
  std::string name(256, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return errno_status(errno, "gethostname");
  return name.substr(0, name.find('\0'));
}

}  // namespace

Result<std::string> this_host() {
  ACCORD_ASSIGN_OR_RETURN(std::string host, machine_id());
  ACCORD_ASSIGN_OR_RETURN(const std::uint64_t network, namespace_number("net"));
  host += fmt::format("/net-{}", network);
  ACCORD_RETURN_IF_ERROR(config().status());
  if (!config()->host_id.empty()) host += "/" + config()->host_id;
  return host;
}

Result<Place> this_place() {
  Place place;
  place.process = getpid();
  const Result<std::uint64_t> processes = namespace_number("pid");
  if (processes.ok()) place.process_space = fmt::format("pid-{}", *processes);
  ACCORD_ASSIGN_OR_RETURN(place.host, this_host());
  ACCORD_ASSIGN_OR_RETURN(place.cpus, usable_cpus());
  ACCORD_ASSIGN_OR_RETURN(Cores cores, cores_of(place.cpus));
  place.cores = cores.cores;
  place.core_ids = std::move(cores.core_ids);
  place.numa_nodes = std::move(cores.numa_nodes);
  place.reader = this_reader();
  return place;
}

}  // namespace accord::topology
