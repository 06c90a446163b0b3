#pragma once
// The transport of simulated processes.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "simulation/scheduler.hpp"
#include "transport/transport.hpp"

namespace accord::simulation {

/// Zeroed pages that lives as long as anyone refers to them, also after the end of the process that made them.
class Pages {
 public:
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// An open endpoint, as its peers see it.
struct Resident {
  std::uint64_t number = 0;
  Process* process = nullptr;
  std::shared_ptr<Pages> window;
  std::set<std::uint64_t> called;  ///< the endpoints that it connects to
  bool has_connected = false;      ///< it waits only for others to say so, too
  bool has_left = false;
};

/// The endpoints of a run.
class Residents {
 public:
  Residents();
  ~Residents();
  static Residents& current();

  Resident& add(std::size_t window_bytes);
  Resident* find(std::uint64_t number);
  /// Endpoints that a process has open.
  std::size_t count(const Process& process) const;

 private:
  std::map<std::uint64_t, std::unique_ptr<Resident>> all_;
};

}  // namespace accord::simulation
