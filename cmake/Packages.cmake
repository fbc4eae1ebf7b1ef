# What comes from the distribution.

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(TBB REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_package(CLI11 REQUIRED)
find_package(hwy REQUIRED)

# toml++: headers only, and without a CMake package before its release 3.4 in some distributions.
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
add_library(longshore::tomlplusplus INTERFACE IMPORTED GLOBAL)
target_include_directories(longshore::tomlplusplus INTERFACE ${TOMLPLUSPLUS_INCLUDE_DIR})

# zstd: no CMake package in Debian.
find_path(ZSTD_INCLUDE_DIR zstd.h REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
add_library(longshore::zstd INTERFACE IMPORTED GLOBAL)
target_include_directories(longshore::zstd INTERFACE ${ZSTD_INCLUDE_DIR})
target_link_libraries(longshore::zstd INTERFACE ${ZSTD_LIBRARY})

# libsodium: no CMake package. The archive where there is one: the program needs four functions of it.
find_path(SODIUM_INCLUDE_DIR sodium.h REQUIRED)
find_library(SODIUM_LIBRARY NAMES libsodium.a sodium REQUIRED)
add_library(longshore::sodium INTERFACE IMPORTED GLOBAL)
target_include_directories(longshore::sodium INTERFACE ${SODIUM_INCLUDE_DIR})
target_link_libraries(longshore::sodium INTERFACE ${SODIUM_LIBRARY})

# liburing: a C library without a CMake package.
find_path(LIBURING_INCLUDE_DIR liburing.h REQUIRED)
find_library(LIBURING_LIBRARY uring REQUIRED)
add_library(longshore::uring INTERFACE IMPORTED GLOBAL)
target_include_directories(longshore::uring INTERFACE ${LIBURING_INCLUDE_DIR})
target_link_libraries(longshore::uring INTERFACE ${LIBURING_LIBRARY})
