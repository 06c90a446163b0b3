# What `cmake --install` gives: headers, libaccord, the command, and a package for find_package(accord).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS accord EXPORT accord_targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT accord
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS accord_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT accord)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/accord DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT accord)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/accord)
install(EXPORT accord_targets NAMESPACE accord:: DESTINATION ${package_dir} COMPONENT accord)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/accordConfig.cmake.in ${PROJECT_BINARY_DIR}/accordConfig.cmake
                              INSTALL_DESTINATION ${package_dir} PATH_VARS CMAKE_INSTALL_BINDIR)
# While the major number is 0, a new minor number may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/accordConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/accordConfig.cmake ${PROJECT_BINARY_DIR}/accordConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT accord)
