# longshore_group_sources(TARGET FILES...): with LONGSHORE_GROUPED, the target's files are compiled in
# groups (CMake's unity builds) instead of one by one, which takes less than half the time. Each
# configuration calls source_groups.py, which chooses the groups. Files with their own compile
# options are compiled alone, and so are those that LONGSHORE_UNGROUPED lists (scripts/dev/mutants).
if(LONGSHORE_GROUPED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

function(longshore_group_sources target)
  if(NOT LONGSHORE_GROUPED)
    return()
  endif()
  set(files ${ARGN})
  list(FILTER files INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM LONGSHORE_UNGROUPED PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE alone)
  if(alone)
    list(REMOVE_ITEM files ${alone})
  endif()
  execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/source_groups.py ${files}
                  OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9-]+ [^\n]+" lines "${lines}")
  set(unity ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/Unity)
  foreach(line ${lines})
    string(REGEX MATCH "^([0-9-]+) ([a-z]+) (.*)$" found "${line}")
    set(compiled ${CMAKE_MATCH_3})
    if(NOT CMAKE_MATCH_1 STREQUAL "-")
      set_source_files_properties(${CMAKE_MATCH_3} PROPERTIES UNITY_GROUP group${CMAKE_MATCH_1})
      set(compiled ${unity}/unity_group${CMAKE_MATCH_1}_cxx.cxx)
    endif()
    if(CMAKE_MATCH_2 STREQUAL "plain")
      set_source_files_properties(${compiled} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A file of a group is an include to GCC, where types in anonymous namespaces look misplaced.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
