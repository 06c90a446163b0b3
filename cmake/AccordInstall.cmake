# `cmake --install` installs headers, libaccord, the command, and a package for find_package(accord). A wheel contains
# the same in the folder of the Python package.
if(SKBUILD)
  set(CMAKE_INSTALL_BINDIR accord/bin)
  set(CMAKE_INSTALL_INCLUDEDIR accord/include)
  set(CMAKE_INSTALL_LIBDIR accord/lib)
  # A wheel cannot contain symbolic links: the library is one file, with the name that programs load.
  set_property(TARGET accord PROPERTY VERSION)
  set(without_links NAMELINK_SKIP)
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/accord)

# The command finds the library and, for `accord --cmake-dir`, the package relative to its own location.
foreach(folder CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR package_dir)
  file(RELATIVE_PATH from_command_to_${folder} /${CMAKE_INSTALL_BINDIR} /${${folder}})
endforeach()
set_target_properties(accord_command PROPERTIES INSTALL_RPATH "$ORIGIN/${from_command_to_CMAKE_INSTALL_LIBDIR}")
target_compile_definitions(accord_command PRIVATE ACCORD_CMAKE_DIR="${from_command_to_package_dir}"
                           ACCORD_INCLUDE_DIR="${from_command_to_CMAKE_INSTALL_INCLUDEDIR}")

install(TARGETS accord EXPORT accord_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT accord ${without_links}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS accord_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT accord)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/accord DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT accord)

install(EXPORT accord_targets NAMESPACE accord:: DESTINATION ${package_dir} COMPONENT accord)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/accordConfig.cmake.in ${PROJECT_BINARY_DIR}/accordConfig.cmake
                              INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_BINDIR)
# While the major number is 0, a new minor number may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/accordConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/accordConfig.cmake ${PROJECT_BINARY_DIR}/accordConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT accord)
