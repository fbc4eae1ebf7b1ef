# longshore::tokenizers_c and longshore::parquet_c: the Rust crates in src/text/tokenizers_c and
# src/data/parquet_c, each behind its C interface, in one library: a program can link one of Rust's.
# Included before any folder: it takes longest, and Ninja begins what is ready in this order. Only
# links wait for it, by the library's name. Cargo decides whether there is anything to compile; all
# presets share its output, build/cargo, but for those whose LONGSHORE_RUST_OPT is another.
# Oniguruma is always compiled from the crate's own sources: an installed shared one would have to be
# linked too, and could split text otherwise.

set(crate ${PROJECT_SOURCE_DIR}/src/text/tokenizers_c)
set(table_crate ${PROJECT_SOURCE_DIR}/src/data/parquet_c)
add_library(longshore::tokenizers_c INTERFACE IMPORTED GLOBAL)
add_library(longshore::parquet_c INTERFACE IMPORTED GLOBAL)
file(GLOB manifest CONFIGURE_DEPENDS ${crate}/Cargo.toml)
if(NOT manifest)
  return()
endif()

find_program(CARGO_PROGRAM cargo HINTS ${PROJECT_SOURCE_DIR}/.deps/bin NO_CMAKE_PATH REQUIRED)
set(target_dir ${PROJECT_SOURCE_DIR}/build/cargo)
set(opt_level)
if(NOT LONGSHORE_RUST_OPT EQUAL 3) # what Cargo.toml says
  string(APPEND target_dir -opt${LONGSHORE_RUST_OPT})
  set(opt_level CARGO_PROFILE_RELEASE_OPT_LEVEL=${LONGSHORE_RUST_OPT})
endif()
set(library ${target_dir}/release/libtokenizers_c.a)
file(GLOB_RECURSE crate_sources CONFIGURE_DEPENDS ${crate}/src/*.rs ${table_crate}/src/*.rs
     ${PROJECT_SOURCE_DIR}/src/base/c_interface/*.rs)
add_custom_command(
  OUTPUT tokenizers_c.stamp
  BYPRODUCTS ${library}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TERM_PROGRESS_WHEN=never RUSTONIG_SYSTEM_LIBONIG=0
          ${opt_level} ${CARGO_PROGRAM} build --release --locked --quiet
          --manifest-path ${crate}/Cargo.toml --target-dir ${target_dir}
  COMMAND ${CMAKE_COMMAND} -E touch tokenizers_c.stamp
  DEPENDS ${crate}/Cargo.toml ${crate}/Cargo.lock ${table_crate}/Cargo.toml ${crate_sources}
  COMMENT "Building the Rust crates"
  VERBATIM)
add_custom_target(tokenizers_c_build DEPENDS tokenizers_c.stamp)
target_include_directories(longshore::tokenizers_c INTERFACE ${crate}/include)
target_link_libraries(longshore::tokenizers_c INTERFACE ${library} Threads::Threads
                                                        ${CMAKE_DL_LIBS} m)
target_include_directories(longshore::parquet_c INTERFACE ${table_crate}/include)
target_link_libraries(longshore::parquet_c INTERFACE longshore::tokenizers_c)
