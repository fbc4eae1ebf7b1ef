# Writes the C++ file OUTPUT with the commit of the checkout SOURCE, if it is not the same already:
#   cmake -D SOURCE=DIR -D OUTPUT=FILE -P source_commit.cmake
set(commit "")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  if(failed)
    set(commit "")
  else()
    execute_process(COMMAND ${GIT} -C ${SOURCE} --no-optional-locks diff --quiet HEAD -- . ":!*.md"
                    RESULT_VARIABLE changed ERROR_QUIET)
    if(changed)
      string(APPEND commit "+")
    endif()
  endif()
endif()
set(text "// Made by cmake/source_commit.cmake.
#include \"trainer/bench_run/source_commit.h\"

namespace longshore {

std::string source_commit() {
  return \"${commit}\";
}

}  // namespace longshore
")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
