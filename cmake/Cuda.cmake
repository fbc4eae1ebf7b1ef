# Decides whether CUDA is on (LONGSHORE_WITH_CUDA) and finds the toolkit: CUDAToolkit_ROOT, then the
# one that scripts/bootstrap fetched, then /usr/local/cuda.
# Gives longshore::cuda_runtime, an empty target when CUDA is off, so that folders name it either way.
# Code asks `#if LONGSHORE_WITH_CUDA`; files named *_cuda.cpp and *.cu are compiled only when on.
# libcuda, the driver, is never linked: binaries start on a machine without one.

add_library(longshore::cuda_runtime INTERFACE IMPORTED GLOBAL)
set(LONGSHORE_WITH_CUDA OFF)

if(NOT LONGSHORE_CUDA STREQUAL "off")
  set(fetched ${PROJECT_SOURCE_DIR}/.deps/libtorch/nvidia/cu13/bin)
  find_program(
    LONGSHORE_NVCC nvcc
    HINTS ${CUDAToolkit_ROOT}/bin $ENV{CUDAToolkit_ROOT}/bin
          ${fetched}
    PATHS /usr/local/cuda/bin)
  if(LONGSHORE_NVCC)
    set(LONGSHORE_WITH_CUDA ON)
  elseif(LONGSHORE_CUDA STREQUAL "on")
    message(FATAL_ERROR "LONGSHORE_CUDA=on, but there is no nvcc: run scripts/bootstrap, or set "
                        "CUDAToolkit_ROOT")
  endif()
endif()

if(LONGSHORE_WITH_CUDA)
  set(CMAKE_CUDA_COMPILER ${LONGSHORE_NVCC})
  get_filename_component(CUDAToolkit_ROOT ${LONGSHORE_NVCC} DIRECTORY)
  get_filename_component(CUDAToolkit_ROOT ${CUDAToolkit_ROOT} DIRECTORY)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    # A100, RTX 30, RTX 40, H100, RTX 50; and code that the driver compiles for all others since H100.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 120-real 90-virtual)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  target_link_libraries(longshore::cuda_runtime INTERFACE CUDA::cudart)
endif()

message(STATUS "CUDA: ${LONGSHORE_WITH_CUDA} ${LONGSHORE_NVCC}")
