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

constexpr std::string_view kLibrary = "libaccord_simulated.so";

struct Library {
  std::vector<std::span<std::byte>> segments;
  std::span<std::byte> thread_segment;
  std::size_t bytes = 0;
  std::vector<std::byte> initial, initial_of_thread;
  Process* process = nullptr;  ///< whose values are in place
  Fiber* fiber = nullptr;
};

int find_segments(dl_phdr_info* info, std::size_t, void* found) {
  if (std::string_view(info->dlpi_name).find(kLibrary) == std::string_view::npos) return 0;
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
      library.thread_segment = {static_cast<std::byte*>(info->dlpi_tls_data), header.p_memsz};
    if (header.p_type != PT_LOAD || (header.p_flags & PF_W) == 0) continue;
    add(begin, std::min(end, std::max(begin, fixed_begin)));
    add(std::max(begin, fixed_end), end);
  }
  return 1;
}

void save(const Library& library, std::vector<std::byte>& variables) {
  variables.resize(library.bytes);
  std::byte* to = variables.data();
  for (const std::span<std::byte> segment : library.segments) {
    std::memcpy(to, segment.data(), segment.size());
    to += segment.size();
  }
}

void load(const Library& library, const std::vector<std::byte>& variables) {
  const std::byte* from = variables.data();
  for (const std::span<std::byte> segment : library.segments) {
    std::memcpy(segment.data(), from, segment.size());
    from += segment.size();
  }
}

Library& library() {
  static Library& found = *[] {
    auto* const made = new Library;
    dl_iterate_phdr(find_segments, made);
    for (const auto segment : made->segments) made->bytes += segment.size();
    save(*made, made->initial);
    made->initial_of_thread.assign(made->thread_segment.begin(), made->thread_segment.end());
    return made;
  }();
  return found;
}

}  // namespace

std::size_t variable_bytes() { return library().bytes; }

void switch_variables(Fiber* fiber) {
  Library& it = library();
  if (it.fiber == fiber) return;
  const std::span<std::byte> local = it.thread_segment;
  if (it.fiber != nullptr) it.fiber->thread_variables.assign(local.begin(), local.end());
  const bool is_new = fiber == nullptr || fiber->thread_variables.empty();
  std::ranges::copy(is_new ? it.initial_of_thread : fiber->thread_variables, local.begin());
  it.fiber = fiber;
  Process* const process = fiber == nullptr ? nullptr : fiber->process;
  if (it.process == process) return;
  if (it.process != nullptr) save(it, it.process->variables);
  load(it, process == nullptr || process->variables.empty() ? it.initial : process->variables);
  it.process = process;
}

}  // namespace accord::simulation
