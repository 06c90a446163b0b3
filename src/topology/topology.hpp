#pragma once
// Which ranks share a host, and how many share a core: what algorithms and the selector need to know about the
// machine.

#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord::topology {

/// Where one rank runs, as announced to the others. A value that travels as text through the store.
struct Place {
  std::string host;       ///< equal for ranks that can share memory: boot id, network namespace and ACCORD_HOST_ID
  int process = 0;        ///< process id in its PID namespace
  std::vector<int> cpus;  ///< processors (OS numbers) that the process may use, ascending
  std::vector<int> numa_nodes;  ///< their memory nodes, ascending
  int cores = 0;                ///< physical cores among `cpus`, at least 1
  std::vector<int> core_ids{};  ///< those cores, ascending, each by its lowest processor; empty if unknown
  std::string reader{};         ///< equal and not empty for processes of one host that may read each other's memory
  /// Equal for processes of one host that share a PID namespace; in different ones, process ids may coincide.
  std::string process_space{};
};

/// Whether two ranks are threads of one process.
bool is_one_process(const Place& a, const Place& b);

/// Inspects this process and machine, by hwloc if built with it, else by sched_getaffinity().
Result<Place> this_place();
/// Place::host alone, which costs some reads of files where this_place() looks at all processors.
Result<std::string> this_host();

/// Converts a Place to JSON and back. kCorrupt describes what is wrong with the text.
std::string to_json(const Place& place);
Result<Place> place_from_json(std::string_view text);

/// The machine under one group of ranks. Immutable.
class Topology {
 public:
  /// Rank r runs at places[r]. REQUIRES: places is not empty.
  explicit Topology(std::vector<Place> places);
  /// `size` ranks on one host with a core each, for tests, simulation and verification.
  static Topology uniform(int size);

  /// The same ranks without shared memory: each counts as a host of its own.
  Topology without_shared_memory() const;

  int size() const { return static_cast<int>(places_.size()); }
  /// 0, 1, ..., size - 1.
  const std::vector<Rank>& ranks() const { return ranks_; }
  const Place& place(Rank rank) const { return places_[static_cast<std::size_t>(rank)]; }
  int host_count() const { return static_cast<int>(hosts_.size()); }
  /// Hosts are numbered by their lowest rank.
  int host_of(Rank rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  /// Ranks of a host, ascending.
  const std::vector<Rank>& ranks_of_host(int host) const { return hosts_[static_cast<std::size_t>(host)]; }
  /// Physical cores that the ranks of a host may use together.
  int cores_of_host(int host) const;
  /// True if all ranks are on one host and may read each other's memory by process_vm_readv().
  bool readable() const { return readable_; }
  /// True if a host has more ranks than physical cores for them: waiting ranks must then yield at once.
  bool oversubscribed() const { return oversubscribed_; }

 private:
  std::vector<Place> places_;
  std::vector<Rank> ranks_;
  std::vector<int> host_of_;
  std::vector<std::vector<Rank>> hosts_;
  bool oversubscribed_ = false;
  bool readable_ = false;
};

}  // namespace accord::topology
