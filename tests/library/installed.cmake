# Installs the library of a build and trains the model of examples/own_model on it, as a stranger's
# program: cmake -D build=DIR -D source=DIR -D scratch=DIR -P installed.cmake. Goal: the headers of
# src/longshore and what they include are enough, and the program links the engine alone.
cmake_minimum_required(VERSION 3.28...3.31)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGV} ended with ${code}:\n${said}")
  endif()
endfunction()

file(REMOVE_RECURSE ${scratch})
set(prefix ${scratch}/prefix)
run(${CMAKE_COMMAND} --install ${build} --component engine --prefix ${prefix})

file(GLOB wanted RELATIVE ${source}/src ${source}/src/longshore/*.h)
file(GLOB public RELATIVE ${prefix}/include ${prefix}/include/longshore/*.h)
if(NOT public STREQUAL wanted)
  message(FATAL_ERROR "installed headers: ${public}\nwanted: ${wanted}")
endif()
file(GLOB folders RELATIVE ${prefix}/include/longshore/detail ${prefix}/include/longshore/detail/*)
foreach(folder config hf text data trainer)
  if(folder IN_LIST folders)
    message(FATAL_ERROR "headers of ${folder} are installed")
  endif()
endforeach()

run(${CMAKE_COMMAND} -G Ninja -D CMAKE_MAKE_PROGRAM=${ninja} -D CMAKE_PREFIX_PATH=${prefix}
    -D LONGSHORE_LIBTORCH=${libtorch} "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
    -S ${source}/examples/own_model -B ${scratch}/build)
run(${CMAKE_COMMAND} --build ${scratch}/build)
file(STRINGS ${scratch}/build/build.ninja linked REGEX "tokenizers|parquet|longshore_(hf|text|data|trainer)")
if(linked)
  message(FATAL_ERROR "links more than the engine: ${linked}")
endif()
run(${scratch}/build/own_model)
