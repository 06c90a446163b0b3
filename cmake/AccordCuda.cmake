# NVIDIA GPUs: nvcc, and the CUDA runtime of the same toolkit, which is linked statically and loads the driver at run
# time. Enables the language CUDA and sets ACCORD_HAS_CUDA, ACCORD_CUDA_VERSION and the target CUDA::cudart_static;
# otherwise ACCORD_CUDA_WITHOUT says why not.
#   nvcc is searched in this order: CUDACXX, the Python environment's packages, the path, /usr/local/cuda.
#   CMAKE_CUDA_ARCHITECTURES: by default, code for H100 and H200 (90), B200 (100) and their successors.
if(ACCORD_CUDA STREQUAL "OFF")
  set(ACCORD_CUDA_WITHOUT "it was not asked for")
  return()
endif()
if(ACCORD_CUDA STREQUAL "AUTO" AND ACCORD_SANITIZE)
  set(ACCORD_CUDA_WITHOUT "builds with sanitizers go without it")
  return()
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90-real 100-real 100-virtual)
endif()

# accord_find_cuda(): sets NVCC, and in the caller's scope cuda_include, cuda_library and ACCORD_CUDA_WITHOUT, which is
# empty if nothing is missing.
function(accord_find_cuda)
  if(CMAKE_CUDA_COMPILER)
    set(NVCC ${CMAKE_CUDA_COMPILER})
  elseif(NVCC AND NOT EXISTS ${NVCC})
    unset(NVCC CACHE)
  endif()
  set(environments $ENV{VENV} $ENV{VIRTUAL_ENV})
  if(Python_EXECUTABLE)
    cmake_path(GET Python_EXECUTABLE PARENT_PATH python_folder)
    list(PREPEND environments ${python_folder}/..)
  endif()
  set(packages)
  foreach(environment ${environments})
    file(GLOB found ${environment}/lib/python3*/site-packages/nvidia/cu13/bin)
    list(APPEND packages ${found})
  endforeach()
  if(DEFINED ENV{CUDACXX})
    find_program(NVCC $ENV{CUDACXX})
  else()
    find_program(NVCC nvcc HINTS ${packages} PATHS /usr/local/cuda/bin)
  endif()
  if(NOT NVCC)
    set(ACCORD_CUDA_WITHOUT "nvcc was not found" PARENT_SCOPE)
    return()
  endif()

  file(REAL_PATH ${NVCC} nvcc)
  cmake_path(GET nvcc PARENT_PATH root)
  cmake_path(GET root PARENT_PATH root)
  set(target targets/${CMAKE_SYSTEM_PROCESSOR}-linux)
  find_path(cuda_include cuda_runtime_api.h HINTS ${root} PATH_SUFFIXES include ${target}/include NO_DEFAULT_PATH NO_CACHE)
  find_library(cuda_library cudart_static HINTS ${root} NO_DEFAULT_PATH NO_CACHE
               PATH_SUFFIXES lib lib64 ${target}/lib lib/${CMAKE_LIBRARY_ARCHITECTURE})
  foreach(needed cuda_include:cuda_runtime_api.h cuda_library:libcudart_static.a)
    string(REPLACE ":" ";" needed ${needed})
    list(GET needed 0 variable)
    list(GET needed 1 file)
    if(NOT ${variable})
      set(ACCORD_CUDA_WITHOUT "${file} was not found in the toolkit of ${NVCC}" PARENT_SCOPE)
      return()
    endif()
  endforeach()

  # Checks that it is complete, works with the C++ compiler, and supports the architectures.
  set(combination "${NVCC} ${CMAKE_CXX_COMPILER} ${CMAKE_CUDA_ARCHITECTURES}")
  if(NOT NVCC_WORKS STREQUAL combination)
    set(codes)
    foreach(architecture ${CMAKE_CUDA_ARCHITECTURES})
      string(REGEX REPLACE "-(real|virtual)$" "" number ${architecture})
      list(APPEND codes --generate-code=arch=compute_${number},code=sm_${number})
    endforeach()
    list(REMOVE_DUPLICATES codes)
    set(program ${PROJECT_BINARY_DIR}/CMakeFiles/nvcc_works)
    file(WRITE ${program}.cu "#include <cooperative_groups.h>\n__global__ void nothing() {}\n")
    execute_process(COMMAND ${NVCC} -std=c++20 -ccbin ${CMAKE_CXX_COMPILER} ${codes} -c ${program}.cu -o ${program}.o
                    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(failed)
      string(REGEX MATCH "[^\n]*(error|fatal)[^\n]*" why "${said}")
      string(REGEX REPLACE "[\"\\;]" "'" why "${why}")  # it becomes a C++ string
      set(ACCORD_CUDA_WITHOUT "${NVCC} does not work with ${CMAKE_CXX_COMPILER}: ${why}" PARENT_SCOPE)
      unset(NVCC CACHE)  # another one may be installed, or be named, the next time
      return()
    endif()
    set(NVCC_WORKS ${combination} CACHE INTERNAL "the compilers and architectures that nvcc was tried with")
  endif()
  set(NVCC ${NVCC} PARENT_SCOPE)
  set(cuda_include ${cuda_include} PARENT_SCOPE)
  set(cuda_library ${cuda_library} PARENT_SCOPE)
  set(ACCORD_CUDA_WITHOUT "" PARENT_SCOPE)
endfunction()

accord_find_cuda()
if(ACCORD_CUDA_WITHOUT)
  if(ACCORD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ACCORD_CUDA=ON, but ${ACCORD_CUDA_WITHOUT}. Install the CUDA toolkit, or nvcc's PyPI "
                        "packages (scripts/setup cuda does), name the one to use by the environment's CUDACXX, or "
                        "set it to AUTO or OFF")
  endif()
  return()
endif()

set(CMAKE_CUDA_COMPILER ${NVCC})
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
# nvcc looks for libraries in lib64, which PyPI's packages do not have.
cmake_path(GET cuda_library PARENT_PATH cuda_libraries)
set(CMAKE_CUDA_FLAGS_INIT "-L\"${cuda_libraries}\"")
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # Debian's CMake 3.25.1 does not know that nvcc supports it
endif()

# Kernels round as the host does: a product and a sum are fused only where the code says fma. They call the host's
# constexpr functions.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--fmad=false> $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)

file(STRINGS ${cuda_include}/cuda_runtime_api.h version REGEX "^#define CUDART_VERSION +[0-9]+")
string(REGEX MATCH "[0-9]+$" version ${version})
math(EXPR major "${version} / 1000")
math(EXPR minor "${version} % 1000 / 10")
set(ACCORD_CUDA_VERSION ${major}.${minor})
add_library(CUDA::cudart_static STATIC IMPORTED)
set_target_properties(CUDA::cudart_static PROPERTIES IMPORTED_LOCATION ${cuda_library} INTERFACE_INCLUDE_DIRECTORIES ${cuda_include}
                      INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};rt")
set(ACCORD_HAS_CUDA TRUE)
message(STATUS "accord: CUDA ${ACCORD_CUDA_VERSION} by ${NVCC}")
