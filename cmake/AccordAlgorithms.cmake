# accord_list_algorithms(TARGET): adds a file to the target that calls COLLECTIVE_NAME_entry() for each of its sources
# plan/algorithms/COLLECTIVE/NAME.cpp. CMake globs the sources again before each build, so a new file joins the list by
# itself. The list is written only if it has changed.
function(accord_list_algorithms target)
  get_target_property(algorithms ${target} SOURCES)
  set(path "^plan/algorithms/([^/]+)/([^/]+)\\.cpp$")
  list(FILTER algorithms INCLUDE REGEX ${path})
  list(SORT algorithms)
  list(TRANSFORM algorithms REPLACE ${path} "\\1_\\2_entry()")
  list(JOIN algorithms ";\nAlgorithmEntry " declared)
  list(JOIN algorithms ",\n          " called)
  set(list ${CMAKE_CURRENT_BINARY_DIR}/algorithm_list.cpp)
  file(CONFIGURE OUTPUT ${list} @ONLY CONTENT [[
// The built-in algorithms, from the names of their files.

#include <vector>

#include "plan/algorithms.hpp"

namespace accord::plan {

AlgorithmEntry @declared@;

std::vector<AlgorithmEntry> built_in_entries() {
  return {@called@};
}

}  // namespace accord::plan
]])
  target_sources(${target} PRIVATE ${list})
endfunction()
