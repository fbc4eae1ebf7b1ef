# longshore_library(NAME [TORCH] [HOT] [DEPENDS targets...] [PRIVATE_DEPENDS targets...])
#
# The library of the current folder: longshore::NAME from every *.cpp under it, and every *.cu when
# CUDA is on. New files are found by the next build. main.cpp and *_main.cpp are left to executables;
# *_cuda.cpp is compiled only when CUDA is on, *_nocuda.cpp only when it is off. A folder without
# sources is a headers-only library. A folder inside that has a CMakeLists.txt is a library of its own.
# TORCH: uses LibTorch, with its precompiled header.
# HOT: has loops over all weights, tokens or bytes, and is compiled with LONGSHORE_HOT_OPTIONS too.

function(longshore_optimise_loops target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${LONGSHORE_HOT_OPTIONS}>)
endfunction()

function(longshore_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;HOT" "" "DEPENDS;PRIVATE_DEPENDS")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
  list(FILTER sources EXCLUDE REGEX "(/|_)main\\.cpp$")
  file(GLOB inner ${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt)
  foreach(path ${inner})
    cmake_path(GET path PARENT_PATH folder)
    list(FILTER sources EXCLUDE REGEX "^${folder}/")
  endforeach()
  if(LONGSHORE_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "_nocuda\\.cpp$")
    list(APPEND sources ${cuda_sources})
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  endif()

  if(sources)
    add_library(longshore_${name} STATIC ${sources})
    longshore_group_sources(longshore_${name} ${sources})
    if(arg_HOT)
      longshore_optimise_loops(longshore_${name})
    endif()
    set(scope PUBLIC)
    set(private_scope PRIVATE)
  else()
    add_library(longshore_${name} INTERFACE)
    set(scope INTERFACE)
    set(private_scope INTERFACE)
  endif()
  add_library(longshore::${name} ALIAS longshore_${name})
  set_target_properties(longshore_${name} PROPERTIES EXPORT_NAME ${name})

  target_include_directories(
    longshore_${name} ${scope} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                               $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
                               $<INSTALL_INTERFACE:include>
                               $<INSTALL_INTERFACE:include/longshore/detail>)
  target_compile_definitions(longshore_${name} ${scope}
                             LONGSHORE_WITH_CUDA=$<BOOL:${LONGSHORE_WITH_CUDA}>)
  target_link_libraries(longshore_${name} ${scope} ${arg_DEPENDS})
  target_link_libraries(longshore_${name} ${private_scope} ${arg_PRIVATE_DEPENDS})
  if(arg_TORCH)
    target_link_libraries(longshore_${name} ${scope} longshore::libtorch)
    if(sources)
      longshore_use_torch_header(longshore_${name})
    endif()
  endif()
  set_property(GLOBAL PROPERTY LONGSHORE_${name}_TORCH ${arg_TORCH})
endfunction()
