# The dependencies that accord is built with; scripts/setup installs them.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(CLI11 REQUIRED)
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
# oneDNN is found by its files: its own CMake package also requires OpenCL's headers, which nothing here uses.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                      INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
# XXH3 uses xxHash's run-time choice of instruction set if xxHash includes that.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES PkgConfig::xxhash)
check_cxx_source_compiles("#include <xxhash.h>
#include <xxh_x86dispatch.h>
int main() { return static_cast<int>(XXH3_64bits(nullptr, 0)); }" XXH_DISPATCH_FOUND)
unset(CMAKE_REQUIRED_LIBRARIES)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
if(NOT ACCORD_TESTS STREQUAL "OFF")
  find_package(GTest QUIET)
  find_package(Boost QUIET COMPONENTS context)
  if(TARGET GTest::gmock AND TARGET Boost::context)
    set(ACCORD_HAS_TESTS TRUE)
  elseif(ACCORD_TESTS STREQUAL "ON")
    message(FATAL_ERROR "ACCORD_TESTS=ON, but GoogleTest and Boost.Context were not both found; install libgtest-dev, "
                        "libgmock-dev and libboost-context-dev (scripts/setup test does) or set it to AUTO or OFF")
  else()
    message(STATUS "accord: no tests (GoogleTest and Boost.Context were not both found)")
  endif()
endif()

include(AccordCuda)

# hwloc is optional: without it the topology comes from sched_getaffinity.
if(NOT ACCORD_HWLOC STREQUAL "OFF")
  pkg_check_modules(hwloc IMPORTED_TARGET hwloc)
  if(hwloc_FOUND)
    set(ACCORD_HWLOC_TARGET PkgConfig::hwloc)
  elseif(ACCORD_HWLOC STREQUAL "ON")
    message(FATAL_ERROR "ACCORD_HWLOC=ON, but hwloc was not found; install libhwloc-dev or set it to AUTO or OFF")
  endif()
endif()

# Only UCX's headers are needed; the library is loaded at run time.
if(NOT ACCORD_UCX STREQUAL "OFF")
  find_path(UCX_INCLUDE_DIR ucp/api/ucp.h)
  if(UCX_INCLUDE_DIR)
    set(ACCORD_HAS_UCX TRUE)
  elseif(ACCORD_UCX STREQUAL "ON")
    message(FATAL_ERROR "ACCORD_UCX=ON, but ucp/api/ucp.h was not found; install libucx-dev or set it to AUTO or OFF")
  endif()
endif()
