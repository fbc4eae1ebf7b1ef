# longshore_embed_texts(TARGET FILES HEADER FUNCTION): the files that the glob FILES matches are in the
# program, in the order of their names, as what FUNCTION() of HEADER returns. Who installs it has no
# such folder. A file config.json has the name of its folder, as models have.
function(longshore_embed_texts target files header function)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${function}.cpp)
  file(GLOB paths CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${files})
  set(rows "")
  foreach(path IN LISTS paths)
    cmake_path(GET path STEM LAST_ONLY name)
    if(path MATCHES "/([^/]+)/config\\.json$")
      set(name ${CMAKE_MATCH_1})
    endif()
    file(READ ${path} text)
    string(APPEND rows "    {\"${name}\", R\"text(${text})text\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Made by cmake/EmbeddedTexts.cmake of ${files}.
#include \"${header}\"

namespace longshore {
namespace {

constexpr NamedText kTexts[] = {
${rows}};

}  // namespace

std::span<const NamedText> ${function}() {
  return kTexts;
}

}  // namespace longshore
")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${paths})
  set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${source})
endfunction()
