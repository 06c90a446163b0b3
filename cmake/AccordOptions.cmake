# Checks the requested options before anything is searched: an option that does not exist or has no meaning is an error,
# and ON is an error if the part cannot be built.
set(accord_options ACCORD_CUDA ACCORD_HWLOC ACCORD_UCX ACCORD_PYTHON ACCORD_TORCHCOMMS ACCORD_TESTS ACCORD_BENCH ACCORD_FUZZ ACCORD_UNITY
    ACCORD_INSTRUCTION_SETS ACCORD_SANITIZE)
get_cmake_property(accord_cached CACHE_VARIABLES)
foreach(name IN LISTS accord_cached)
  if(name MATCHES "^ACCORD_" AND NOT name IN_LIST accord_options)
    list(JOIN accord_options ", " accord_known)
    message(FATAL_ERROR "unknown option ${name}; there are ${accord_known} (cmake -U ${name} forgets it)")
  endif()
endforeach()

foreach(name ACCORD_CUDA ACCORD_HWLOC ACCORD_UCX ACCORD_PYTHON ACCORD_TESTS)
  if(NOT ${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${name} is AUTO, ON or OFF, not \"${${name}}\"")
  endif()
endforeach()

if(NOT ACCORD_INSTRUCTION_SETS MATCHES "^(ALL|NATIVE)$")
  message(FATAL_ERROR "ACCORD_INSTRUCTION_SETS is ALL or NATIVE, not \"${ACCORD_INSTRUCTION_SETS}\"")
endif()
if(ACCORD_INSTRUCTION_SETS STREQUAL "NATIVE" AND CMAKE_CROSSCOMPILING)
  message(FATAL_ERROR "ACCORD_INSTRUCTION_SETS=NATIVE is this machine's, and the build is for another one")
endif()

if(NOT ACCORD_UNITY MATCHES "^[0-9]+$")
  message(FATAL_ERROR "ACCORD_UNITY is a number of files, not \"${ACCORD_UNITY}\"")
endif()

if(ACCORD_TORCHCOMMS AND ACCORD_PYTHON STREQUAL "OFF")
  message(FATAL_ERROR "ACCORD_TORCHCOMMS=${ACCORD_TORCHCOMMS} needs the Python module; set ACCORD_PYTHON to ON")
endif()
