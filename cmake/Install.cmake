# cmake --install build/release --prefix DIR: bin/longshore, and for those who train models of their
# own: the libraries of the engine, include/longshore/ and a CMake package (find_package(longshore),
# longshore::engine). The headers of src/longshore are the interface. Those that they include are
# installed below include/longshore/detail, and may change with any version.
include(CMakePackageConfigHelpers)

if(TARGET longshore)
  install(TARGETS longshore RUNTIME DESTINATION bin)
endif()

install(TARGETS longshore_base longshore_shard longshore_config longshore_device longshore_kernels
                longshore_comm longshore_pinned longshore_nvme longshore_model longshore_offload
                longshore_engine
        EXPORT longshore ARCHIVE DESTINATION lib COMPONENT engine)
install(CODE "set(source \"${PROJECT_SOURCE_DIR}\")" COMPONENT engine)
install(SCRIPT cmake/install_headers.cmake COMPONENT engine)

set(package_dir lib/cmake/longshore)
install(EXPORT longshore NAMESPACE longshore:: DESTINATION ${package_dir} COMPONENT engine)
configure_package_config_file(cmake/longshoreConfig.cmake.in longshoreConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(longshoreConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/LibTorch.cmake ${PROJECT_BINARY_DIR}/longshoreConfig.cmake
              ${PROJECT_BINARY_DIR}/longshoreConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT engine)
