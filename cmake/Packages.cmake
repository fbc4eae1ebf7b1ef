# What comes from the distribution.

find_package(Threads REQUIRED)
find_package(TBB REQUIRED)
find_package(nlohmann_json REQUIRED)

# toml++: headers only, and without a CMake package before its release 3.4 in some distributions.
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)
add_library(longshore_tomlplusplus INTERFACE)
add_library(longshore::tomlplusplus ALIAS longshore_tomlplusplus)
target_include_directories(longshore_tomlplusplus SYSTEM INTERFACE ${TOMLPLUSPLUS_INCLUDE_DIR})
