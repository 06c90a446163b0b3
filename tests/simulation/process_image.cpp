// The library's writable segment, without the part that is read-only once the library is loaded, is copied out and in
// whenever a thread of another process runs, its thread-local variables whenever another thread does. That costs less
// than a microsecond, because the runtime has few global variables. Processes start with the values that the library
// was loaded with: nothing in it may run before the first process.
#include "simulation/process_image.hpp"

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "simulation/scheduler.hpp"

namespace accord::simulation {
namespace {

/// The simulated library, and the one with planted bugs, which replaces parts of it.
constexpr std::string_view kLibraries[] = {"libaccord_simulated.so", "libaccord_planted.so"};

struct Library {
  std::vector<std::span<std::byte>> segments;
  std::vector<std::span<std::byte>> thread_segments;
  std::vector<std::byte> initial, initial_of_thread;
  Process* process = nullptr;  ///< whose values are in place
  Fiber* fiber = nullptr;
};

int find_segments(dl_phdr_info* info, std::size_t, void* found) {
  const auto is_it = [&](std::string_view name) {
    return std::string_view(info->dlpi_name).find(name) != std::string_view::npos;
  };
  if (std::ranges::none_of(kLibraries, is_it)) return 0;
  Library& library = *static_cast<Library*>(found);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  std::uintptr_t fixed_begin = 0, fixed_end = 0;
  for (const auto& header : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    if (header.p_type != PT_GNU_RELRO) continue;
    fixed_begin = info->dlpi_addr + header.p_vaddr;
    fixed_end = (fixed_begin + header.p_memsz) / page * page;
  }
  const auto add = [&](std::uintptr_t begin, std::uintptr_t end) {
    if (begin < end) library.segments.emplace_back(reinterpret_cast<std::byte*>(begin), end - begin);
  };
  for (const auto& header : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
    if (header.p_type == PT_TLS)
      library.thread_segments.emplace_back(static_cast<std::byte*>(info->dlpi_tls_data), header.p_memsz);
    if (header.p_type != PT_LOAD || (header.p_flags & PF_W) == 0) continue;
    add(begin, std::min(end, std::max(begin, fixed_begin)));
    add(std::max(begin, fixed_end), end);
  }
  return 0;
}

void save(const std::vector<std::span<std::byte>>& segments, std::vector<std::byte>& variables) {
  std::size_t bytes = 0;
  for (const std::span<std::byte> segment : segments) bytes += segment.size();
  variables.resize(bytes);
  std::byte* to = variables.data();
  for (const std::span<std::byte> segment : segments) to = std::ranges::copy(segment, to).out;
}

void load(const std::vector<std::span<std::byte>>& segments, const std::vector<std::byte>& variables) {
  const std::byte* from = variables.data();
  for (const std::span<std::byte> segment : segments) {
    std::memcpy(segment.data(), from, segment.size());
    from += segment.size();
  }
}

Library& library() {
  static Library& found = *[] {
    auto* const made = new Library;
    dl_iterate_phdr(find_segments, made);
    save(made->segments, made->initial);
    save(made->thread_segments, made->initial_of_thread);
    return made;
  }();
  return found;
}

}  // namespace

void switch_variables(Fiber* fiber) {
  Library& it = library();
  if (it.fiber == fiber) return;
  if (it.fiber != nullptr) save(it.thread_segments, it.fiber->thread_variables);
  const bool is_new = fiber == nullptr || fiber->thread_variables.empty();
  load(it.thread_segments, is_new ? it.initial_of_thread : fiber->thread_variables);
  it.fiber = fiber;
  Process* const process = fiber == nullptr ? nullptr : fiber->process;
  if (it.process == process) return;
  if (it.process != nullptr) save(it.segments, it.process->variables);
  load(it.segments, process == nullptr || process->variables.empty() ? it.initial : process->variables);
  it.process = process;
}

}  // namespace accord::simulation
