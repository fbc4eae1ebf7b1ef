# cmake --install build/release --prefix DIR: the binary, the libraries and the headers.
include(GNUInstallDirs)

if(TARGET longshore)
  install(TARGETS longshore RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
