// hwloc reports which processors share a core and a memory node. It reads the whole machine, including processors
// that this process may not use, so that a core has the same id (its lowest processor) for processes bound to
// different threads of it. Without hwloc, each processor counts as its own core and all memory as one node.
#include "topology/cores.hpp"

#include <set>

#ifdef ACCORD_HAS_HWLOC
#include <hwloc.h>

#include <memory>
#endif

namespace accord::topology {

#ifdef ACCORD_HAS_HWLOC

namespace {

using Machine = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Result<Machine> inspect_machine() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return Status(StatusCode::kResourceExhausted, "hwloc_topology_init failed");
  Machine machine(topology, hwloc_topology_destroy);
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  // Caches, devices and the rest are not needed; leaving them out makes discovery several times faster.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) != 0) return Status(StatusCode::kIo, "hwloc could not inspect this machine");
  return machine;
}

}  // namespace

Result<Cores> cores_of(const std::vector<int>& cpus) {
  ACCORD_ASSIGN_OR_RETURN(const Machine machine, inspect_machine());
  std::set<int> cores;
  std::set<int> nodes;
  for (const int cpu : cpus) {
    hwloc_obj_t processor = hwloc_get_pu_obj_by_os_index(machine.get(), static_cast<unsigned>(cpu));
    if (processor == nullptr) {
      cores.insert(cpu);
      continue;
    }
    hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(machine.get(), HWLOC_OBJ_CORE, processor);
    cores.insert(core == nullptr ? cpu : hwloc_bitmap_first(core->cpuset));
    for (hwloc_obj_t node = nullptr;
         (node = hwloc_get_next_obj_by_type(machine.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
      if (hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(cpu))) nodes.insert(static_cast<int>(node->os_index));
    }
  }
  if (nodes.empty()) nodes.insert(0);
  return Cores{.cores = static_cast<int>(cores.size()),
               .core_ids = {cores.begin(), cores.end()},
               .numa_nodes = {nodes.begin(), nodes.end()}};
}

#else

Result<Cores> cores_of(const std::vector<int>& cpus) {
  return Cores{.cores = static_cast<int>(cpus.size()), .core_ids = {}, .numa_nodes = {0}};
}

#endif

}  // namespace accord::topology
