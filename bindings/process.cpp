// A handler of pthread_atfork counts forks, so that a check costs one load (getpid would be a system call).
#include "process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "status.hpp"

namespace accord::python {
namespace {
std::atomic<std::uint64_t> generation = 0;
std::atomic<bool> alive = true;
}  // namespace

void watch_process() {
  pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  const nb::module_ atexit = nb::module_::import_("atexit");
  atexit.attr("register")(nb::cpp_function([] { alive.store(false, std::memory_order_release); }));
}

std::uint64_t fork_generation() { return generation.load(std::memory_order_relaxed); }

bool interpreter_alive() { return alive.load(std::memory_order_acquire); }

void raise_forked(std::string_view what) {
  raise(Status(StatusCode::kWrongState, std::string(what) + " was made before this process (" +
                                            std::to_string(getpid()) +
                                            ") was forked and belongs to its parent; make a new one in the child"));
}

}  // namespace accord::python
