# Run after test_<name> was linked: asks it for its tests and writes a ctest entry for each suite, or
# for each test with all its parameters; and the suites of the tests that are left out, a line for each test.
# binary, run (a filter), name, each (suite or test), list and left_out_list (files to write), results (a folder),
# left_out (patterns), properties.
function(list_tests filter out)
  execute_process(COMMAND ${binary} --gtest_list_tests --gtest_filter=${filter} TIMEOUT 600
                  OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" lines "${lines}")
  set(suites "")
  set(tests "")
  set(whole "")
  foreach(line ${lines})
    if(line MATCHES "^([A-Za-z_][^ ]*)\\.($| )")
      set(suite ${CMAKE_MATCH_1})
      list(APPEND suites ${suite}.*)
    elseif(line MATCHES "^  ([^ /]+)(/?)")
      # A test with parameters is a line for each of them: one entry runs all.
      list(APPEND tests ${suite}.${CMAKE_MATCH_1})
      set(entry ${suite}.${CMAKE_MATCH_1})
      if(CMAKE_MATCH_2)
        string(APPEND entry "/*")
      endif()
      list(APPEND whole ${entry})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES whole)
  set(${out}_suites "${suites}" PARENT_SCOPE)
  set(${out}_lines "${tests}" PARENT_SCOPE)
  set(${out}_tests "${whole}" PARENT_SCOPE)
endfunction()

list_tests("${run}" run)
set(text "")
foreach(filter ${run_${each}s})
  string(REGEX REPLACE "[./]\\*$" "" entry "${filter}")
  if(each STREQUAL "suite" AND run MATCHES "^-")
    string(APPEND filter "${run}")
  endif()
  string(REPLACE "/" "-" file "${entry}")
  string(APPEND text
         "add_test([=[${name}.${entry}]=] ${binary} --gtest_brief=1 [=[--gtest_filter=${filter}]=] "
         "[=[--gtest_output=xml:${results}/${name}.${file}.xml]=])\n"
         "set_tests_properties([=[${name}.${entry}]=] PROPERTIES ${properties})\n")
endforeach()
file(WRITE ${list} "${text}")

if(NOT run MATCHES "^-")
  return()
endif()
list_tests("${left_out}" not_run)
string(REGEX REPLACE "\\.[^.;]*(;|$)" "\n" text "${not_run_lines}")
file(WRITE ${left_out_list} "${text}")
