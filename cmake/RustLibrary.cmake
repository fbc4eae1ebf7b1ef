# longshore::tokenizers_c, longshore::parquet_c and longshore::yaml_c: the Rust crates in
# src/text/tokenizers_c, src/data/parquet_c and src/hf/yaml_c, each behind its C interface, in one
# library (src/Cargo.toml): a program can link one of Rust's.
# Included before any folder: it takes longest, and Ninja begins what is ready in this order. Only
# links wait for it, by the library's name. Cargo decides whether there is anything to compile; all
# presets share its output, build/cargo, but for those whose LONGSHORE_RUST_OPT is another.
# Oniguruma is always compiled from the crate's own sources: an installed shared one would have to be
# linked too, and could split text otherwise.

set(crates text/tokenizers_c data/parquet_c hf/yaml_c)
set(manifest ${PROJECT_SOURCE_DIR}/src/Cargo.toml)
find_program(CARGO_PROGRAM cargo HINTS ${PROJECT_SOURCE_DIR}/.deps/bin NO_CMAKE_PATH REQUIRED)
set(target_dir ${PROJECT_SOURCE_DIR}/build/cargo)
set(opt_level)
if(NOT LONGSHORE_RUST_OPT EQUAL 3) # what Cargo.toml says
  string(APPEND target_dir -opt${LONGSHORE_RUST_OPT})
  set(opt_level CARGO_PROFILE_RELEASE_OPT_LEVEL=${LONGSHORE_RUST_OPT})
endif()
set(coverage)
if(LONGSHORE_SANITIZE MATCHES "fuzzer") # libFuzzer sees which branches of the crates an input takes
  set(triple ${CMAKE_SYSTEM_PROCESSOR}-unknown-linux-gnu) # named: build scripts get no flags then
  set(coverage "RUSTFLAGS=-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
               CARGO_BUILD_TARGET=${triple})
  string(APPEND target_dir -fuzz)
  set(library ${target_dir}/${triple}/release/librust_crates.a)
else()
  set(library ${target_dir}/release/librust_crates.a)
endif()
file(GLOB_RECURSE crate_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.rs
     ${PROJECT_SOURCE_DIR}/src/Cargo.*)
add_custom_command(
  OUTPUT rust_crates.stamp
  BYPRODUCTS ${library}
  COMMAND ${CMAKE_COMMAND} -E env CARGO_TERM_PROGRESS_WHEN=never RUSTONIG_SYSTEM_LIBONIG=0
          ${opt_level} ${coverage} ${CARGO_PROGRAM} build --release --locked --quiet
          --manifest-path ${manifest} --target-dir ${target_dir}
  COMMAND ${CMAKE_COMMAND} -E touch rust_crates.stamp
  DEPENDS ${crate_sources}
  COMMENT "Building the Rust crates"
  VERBATIM)
add_custom_target(rust_crates_build DEPENDS rust_crates.stamp)
foreach(crate ${crates})
  cmake_path(GET crate FILENAME name)
  add_library(longshore::${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(longshore::${name} INTERFACE ${PROJECT_SOURCE_DIR}/src/${crate}/include)
  target_link_libraries(longshore::${name} INTERFACE ${library} Threads::Threads ${CMAKE_DL_LIBS} m)
endforeach()
