# test_emulation: every kernel of src/kernels compiled for the host, with its reference, and run on
# emulated grids. It has the kernels' own functions instead of longshore::kernels, and needs no CUDA.
# Without a sanitizer the kernels are compiled with calls to the emulation's own checker.
file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/*.cu)
file(GLOB references CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/*.cpp)
list(FILTER references EXCLUDE REGEX "_nocuda\\.cpp$")
set(here ${CMAKE_CURRENT_LIST_DIR})
file(GLOB emulation CONFIGURE_DEPENDS ${here}/*.cpp)
list(APPEND kernels ${here}/faulty_kernels.cu)
set(hooks ${here}/access_hooks.cpp)

# Signs are compared as nvcc's host compiler is not asked about; wide loads look at any type.
set(kernel_options -x c++ -Wno-sign-compare -fno-strict-aliasing)
if(NOT LONGSHORE_SANITIZE)
  list(APPEND kernel_options -fsanitize=thread)
else()
  list(REMOVE_ITEM emulation ${hooks})
endif()
# The grid is the machine: what it does between threads is no access of theirs.
if(LONGSHORE_SANITIZE STREQUAL "thread")
  set_source_files_properties(${here}/fiber.cpp ${here}/emulated_grid.cpp PROPERTIES
    COMPILE_OPTIONS "-fno-sanitize=thread;-DLONGSHORE_TSAN=1")
endif()

add_executable(test_emulation ${emulation} ${references} ${kernels} ${where})
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${kernel_options}")
target_include_directories(test_emulation BEFORE PRIVATE ${here}/cuda)
target_include_directories(test_emulation PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(test_emulation PRIVATE longshore::base hwy::hwy GTest::gtest GTest::gtest_main)
longshore_optimise_loops(test_emulation)
longshore_register_test(emulation)
