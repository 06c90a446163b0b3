# accord_sources(FOLDER): sets the caller's `sources` to all .cpp, .c and .cu files below the folder. Without CUDA,
# files in folders named "cuda" are left out. With CUDA, if there are such files, sets `cuda` to the library that they
# need.
function(accord_sources folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${folder}/*.cpp ${folder}/*.c ${folder}/*.cu)
  set(others ${sources})
  list(FILTER others EXCLUDE REGEX "/cuda/")
  set(cuda)
  if(NOT ACCORD_HAS_CUDA)
    set(sources ${others})
  elseif(NOT others STREQUAL sources)
    set(cuda CUDA::cudart_static)
  endif()
  set(sources ${sources} PARENT_SCOPE)
  set(cuda ${cuda} PARENT_SCOPE)
endfunction()

# accord_compile_together(TARGET): compiles the .cpp files of a folder as one, ACCORD_UNITY at a time, because most of
# the compiler's work for one file is to read the same headers again. A file with compile options of its own is compiled
# by itself.
function(accord_compile_together target)
  if(ACCORD_UNITY LESS 2)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(SORT sources)
  set(last_folder)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    cmake_path(GET folder PARENT_PATH folder)
    if(NOT folder STREQUAL last_folder)
      set(last_folder "${folder}")
      set(count 0)
    endif()
    math(EXPR part "${count} / ${ACCORD_UNITY}")
    math(EXPR count "${count} + 1")
    string(MAKE_C_IDENTIFIER "${folder}_${part}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# accord_light(TARGET): compiles a target whose run time does not matter with -O1, in two thirds of the time.
function(accord_light target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:C,CXX>>:-O1>)
endfunction()

# accord_layer(NAME [APART] [LIGHT] DEPENDS layers... LIBRARIES targets...)
#
# Adds one folder of src/, with all files in it and its subfolders, as a static library accord_NAME. DEPENDS names the
# layers that it may include; tests/lint checks that against docs/architecture.md.
# APART: each file is compiled by itself. LIGHT: accord_light.
# A subfolder that ACCORD_LAYER_WITHOUT names is left out. ACCORD_HAS_CUDA is defined if the layer has a folder named
# "cuda" that is built.
function(accord_layer name)
  cmake_parse_arguments(ARG "APART;LIGHT" "" "DEPENDS;LIBRARIES" ${ARGN})
  accord_sources(${name})
  list(APPEND ARG_LIBRARIES ${cuda})
  if(ACCORD_LAYER_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "^${ACCORD_LAYER_WITHOUT}/")
  endif()
  add_library(accord_${name} STATIC ${sources})
  if(NOT ARG_APART)
    accord_compile_together(accord_${name})
  endif()
  if(ARG_LIGHT)
    accord_light(accord_${name})
  endif()
  target_include_directories(accord_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(accord_${name} PRIVATE ${ACCORD_WARNINGS})
  if(cuda)
    target_compile_definitions(accord_${name} PRIVATE ACCORD_HAS_CUDA)
  endif()
  list(TRANSFORM ARG_DEPENDS PREPEND accord_)
  target_link_libraries(accord_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY ACCORD_LAYERS accord_${name})
  set_property(GLOBAL APPEND PROPERTY ACCORD_LIBRARIES ${ARG_LIBRARIES})
endfunction()

# accord_test(NAME SOURCES files... LAYERS layers... LABELS labels... [LIBRARIES libraries...] [TIMEOUT seconds]
#             [PARTS n])
#
# Adds a GoogleTest program accord_NAME_test, labelled for the selection of suites (unit, conformance, multiproc, slow).
# ctest runs it as a whole, or in n parts, NAME.1 to NAME.n. Each part writes its report to a folder with the part's name
# in the folder that GTEST_OUTPUT names; if it names none, GoogleTest warns that it does not know "NAME.1/". The
# program's name is a label, too, so that a program is found from its tests and its tests from the program.
function(accord_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PARTS" "SOURCES;LAYERS;LIBRARIES;LABELS" ${ARGN})
  add_executable(accord_${name}_test ${ARG_SOURCES})
  accord_compile_together(accord_${name}_test)
  target_include_directories(accord_${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(accord_${name}_test PRIVATE ${ACCORD_WARNINGS})
  accord_light(accord_${name}_test)  # tests are compiled more often than they run
  list(TRANSFORM ARG_LAYERS PREPEND accord_)
  target_link_libraries(accord_${name}_test PRIVATE ${ARG_LAYERS} ${ARG_LIBRARIES} GTest::gmock GTest::gtest_main)
  set(tests)
  if(ARG_PARTS)
    foreach(part RANGE 1 ${ARG_PARTS})
      math(EXPR index "${part} - 1")
      add_test(NAME ${name}.${part} COMMAND accord_${name}_test)
      set_tests_properties(${name}.${part} PROPERTIES
        ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_PARTS};GTEST_SHARD_INDEX=${index}"
        ENVIRONMENT_MODIFICATION GTEST_OUTPUT=string_append:${name}.${part}/)
      list(APPEND tests ${name}.${part})
    endforeach()
  else()
    add_test(NAME ${name} COMMAND accord_${name}_test)
    set(tests ${name})
    if(NOT ARG_LABELS STREQUAL "unit")  # ranks that wait for each other need the processors for themselves
      set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
    endif()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS "${ARG_LABELS};accord_${name}_test" TIMEOUT ${ARG_TIMEOUT})
  if(ACCORD_SANITIZE)
    # UCX's hooks into mmap and munmap, which TCP does not need, conflict with those of the sanitizers.
    set_property(TEST ${tests} APPEND PROPERTY ENVIRONMENT UCX_MEM_EVENTS=n)
  endif()
endfunction()
