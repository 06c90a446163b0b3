// A handler of pthread_atfork counts forks, so that a check costs one load (getpid would be a system call).
#include "bindings/interpreter/process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {
std::atomic<std::uint64_t> generation = 0;
std::atomic<bool> alive = true;
std::atomic<int> calls_into_python = 0;  // in progress

constexpr std::chrono::seconds kMaxCallWait(5);

/// Waits for the calls in progress, which need the GIL to end.
void end_interpreter() {
  alive.store(false, std::memory_order_seq_cst);
  const WithoutGil without_gil;
  const auto deadline = std::chrono::steady_clock::now() + kMaxCallWait;
  while (calls_into_python.load(std::memory_order_seq_cst) > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}
}  // namespace

PythonCallScope::PythonCallScope() {
  calls_into_python.fetch_add(1, std::memory_order_seq_cst);
  may_call_ = alive.load(std::memory_order_seq_cst);
}

PythonCallScope::~PythonCallScope() { calls_into_python.fetch_sub(1, std::memory_order_seq_cst); }

void watch_process() {
  pthread_atfork(nullptr, nullptr, [] {
    generation.fetch_add(1, std::memory_order_relaxed);
    calls_into_python.store(0, std::memory_order_relaxed);  // those of threads that do not exist in the child
  });
  const nb::module_ atexit = nb::module_::import_("atexit");
  atexit.attr("register")(nb::cpp_function(&end_interpreter));
}

std::uint64_t fork_generation() { return generation.load(std::memory_order_relaxed); }

void raise_forked(std::string_view what) {
  raise(Status(StatusCode::kWrongState, std::string(what) + " was created before this process (" +
                                            std::to_string(getpid()) +
                                            ") was forked and belongs to its parent; create a new one in the child"));
}

}  // namespace accord::python
