# cmake --install build/release --prefix DIR: bin/longshore, and for those who train models of their
# own: lib/, include/longshore/ and a CMake package (find_package(longshore), longshore::trainer).
include(CMakePackageConfigHelpers)

if(TARGET longshore)
  install(TARGETS longshore RUNTIME DESTINATION bin)
endif()

set(package_dir lib/cmake/longshore)
install(EXPORT longshore NAMESPACE longshore:: DESTINATION ${package_dir})
install(FILES cmake/LibTorch.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/longshoreConfig.cmake.in longshoreConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(longshoreConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/longshoreConfig.cmake
              ${PROJECT_BINARY_DIR}/longshoreConfigVersion.cmake DESTINATION ${package_dir})
