#pragma once
// The memory of simulated processes.

#include <cstddef>

namespace accord::simulation {

/// Memory that one process has allocated and not freed.
struct HeapUse {
  std::size_t blocks = 0;
  std::size_t bytes = 0;
};
HeapUse heap_use(int pid);
/// Frees the memory of all processes. The next run gets the same addresses.
void reset_heap();

}  // namespace accord::simulation
