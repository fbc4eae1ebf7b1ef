# Imported targets for a LibTorch: LONGSHORE_LIBTORCH, else Torch_DIR or CMAKE_PREFIX_PATH, else the
# one that scripts/bootstrap fetched. find_package(Torch) is not used: it is slow, wants CUDA found
# its own way, and links everything.
#
#   longshore::libtorch       headers, libc10, libtorch_cpu
#   longshore::c10_cuda       LibTorch's streams and memory of GPUs; links the CUDA runtime. Empty
#                             when CUDA is off.
#
# libtorch_cuda, the kernels, is not linked: it doubles start-up time. Whoever computes on a GPU
# loads it (src/device/cuda_device.h).

set(LONGSHORE_LIBTORCH "$ENV{LONGSHORE_LIBTORCH}" CACHE PATH "Root of a LibTorch (has lib/, include/)")

# Below the checkout even where .deps is a link: linked worktrees share one .deps, and the compiler's
# cache takes paths below the checkout alone as equal.
set(fetched ${PROJECT_SOURCE_DIR}/.deps/libtorch/torch)
set(hints ${LONGSHORE_LIBTORCH})
foreach(dir ${Torch_DIR} $ENV{Torch_DIR})
  list(APPEND hints ${dir}/../../..)
endforeach()
string(REPLACE ":" ";" prefixes "$ENV{CMAKE_PREFIX_PATH}")
list(APPEND hints ${CMAKE_PREFIX_PATH} ${prefixes})
find_path(
  LONGSHORE_LIBTORCH_ROOT include/torch/csrc/api/include/torch/torch.h
  HINTS ${hints}
  PATHS ${fetched} NO_CMAKE_FIND_ROOT_PATH)
if(NOT LONGSHORE_LIBTORCH_ROOT)
  message(FATAL_ERROR "No LibTorch: run scripts/bootstrap, or set LONGSHORE_LIBTORCH to one")
endif()
message(STATUS "LibTorch: ${LONGSHORE_LIBTORCH_ROOT}")

function(longshore_import_torch_library name)
  add_library(longshore::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(longshore::${name} PROPERTIES IMPORTED_LOCATION
                                                      ${LONGSHORE_LIBTORCH_ROOT}/lib/lib${name}.so)
endfunction()

longshore_import_torch_library(c10)
longshore_import_torch_library(torch_cpu)

# Imported targets are system ones: warnings in LibTorch's headers are not ours.
add_library(longshore::libtorch INTERFACE IMPORTED GLOBAL)
target_include_directories(
  longshore::libtorch INTERFACE ${LONGSHORE_LIBTORCH_ROOT}/include
                                ${LONGSHORE_LIBTORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(longshore::libtorch INTERFACE longshore::torch_cpu longshore::c10)

if(LONGSHORE_WITH_CUDA AND EXISTS ${LONGSHORE_LIBTORCH_ROOT}/lib/libc10_cuda.so)
  longshore_import_torch_library(c10_cuda)
  target_link_libraries(longshore::c10_cuda INTERFACE longshore::libtorch longshore::cuda_runtime)
else()
  add_library(longshore::c10_cuda INTERFACE IMPORTED GLOBAL)
endif()

# The CUDA libraries that LibTorch itself loads lie beside it when it came as a wheel; the linker
# must see them too, to know that every symbol is found.
get_filename_component(site ${LONGSHORE_LIBTORCH_ROOT} DIRECTORY)
file(GLOB nvidia_libraries ${site}/nvidia/*/lib)
set(CMAKE_INSTALL_RPATH $ORIGIN/../lib ${LONGSHORE_LIBTORCH_ROOT}/lib ${nvidia_libraries})
# Programs have it from the beginning. CMake would fill up another one with empty folders, to have room
# for this one at the installation, and the loader takes each empty folder for the current directory,
# where it would look for every library first.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

# LibTorch headers take 7 to 13 s to parse: they are compiled once, and every target that uses
# LibTorch reuses the result (2.3 s a file).
function(longshore_use_torch_header target)
  if(NOT TARGET longshore_torch_header)
    file(WRITE ${PROJECT_BINARY_DIR}/torch_header.cpp "// Compiles cmake/torch_header.h.\n")
    add_library(longshore_torch_header OBJECT ${PROJECT_BINARY_DIR}/torch_header.cpp)
    target_link_libraries(longshore_torch_header PRIVATE longshore::libtorch)
    # GCC 12 crashes where code with -O2 uses a header compiled with -O1; the other way round it works.
    longshore_optimise_loops(longshore_torch_header)
    target_precompile_headers(longshore_torch_header PRIVATE
                              ${PROJECT_SOURCE_DIR}/cmake/torch_header.h)
  endif()
  target_precompile_headers(${target} REUSE_FROM longshore_torch_header)
endfunction()
