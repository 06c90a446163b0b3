#pragma once
// The kernel's objects behind descriptors of simulated processes: event counters, epoll sets and watches of processes.

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "simulation/scheduler.hpp"

namespace accord::simulation {

/// Numbers of simulated descriptors begin here; smaller ones are this process's own.
inline constexpr int kFirstDescriptor = 1 << 20;

/// An open file of a simulated process. Thread-safe in the sense of the simulator: only one thread runs.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  /// EPOLLIN, EPOLLOUT, ... that hold now.
  virtual std::uint32_t events() const = 0;
  /// As the system calls; the result is -errno after a failure.
  virtual std::int64_t read(void* to, std::size_t bytes);
  virtual std::int64_t write(const void* from, std::size_t bytes);
};

/// All descriptors of a run.
class Descriptors {
 public:
  explicit Descriptors(Scheduler& scheduler);
  ~Descriptors();
  /// Null outside of a run.
  static Descriptors* current();

  int add(std::unique_ptr<OpenFile> file);
  /// Null if there is none.
  OpenFile* find(int descriptor) const;
  /// Returns false if there is none.
  bool close(int descriptor);
  /// Number of descriptors that a process has open, and real resources that it holds: files and mappings.
  std::size_t count(const Process& process) const;
  std::size_t count_real(const Process& process) const;

  int open_process(int pid);
  int open_epoll();
  int control_epoll(int epoll, int operation, int descriptor, const epoll_event* event);
  /// Fills `ready` and returns how many there are; waits until there is one or the time has come.
  int wait_epoll(int epoll, epoll_event* ready, int limit, Time deadline);
  /// Wakes the threads that wait for descriptors of the process.
  void notify(const Process& process) { scheduler_.wake_all(&process); }
  void notify_all();

  /// Other processes know that this one has ended.
  bool is_known_to_have_ended(int pid) const;

  // Descriptors that a process really holds, to be released when it ends.
  void note_file(int file) { held_[Scheduler::fiber()->process].files.push_back(file); }
  void note_mapping(void* begin, std::size_t bytes);
  void forget_file(int file);
  void forget_mapping(void* begin);

 private:
  struct Slot {
    std::unique_ptr<OpenFile> file;
    Process* owner = nullptr;
  };
  struct Mapping {
    void* begin;
    std::size_t bytes;
  };
  struct Held {
    std::vector<int> files;
    std::vector<Mapping> mappings;
  };
  void on_end(Process& process);
  void release(Held& held);

  Scheduler& scheduler_;
  std::vector<Slot> slots_;
  std::map<const Process*, Held> held_;
  std::map<int, bool> known_to_have_ended_;
};

}  // namespace accord::simulation
