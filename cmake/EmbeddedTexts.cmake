# longshore_embed_texts(TARGET FOLDER HEADER FUNCTION): the *.toml files of FOLDER are in the program,
# as what FUNCTION() of HEADER returns. Who installs it has no such folder.
function(longshore_embed_texts target folder header function)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${function}.cpp)
  file(GLOB paths CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.toml)
  set(rows "")
  foreach(path IN LISTS paths)
    cmake_path(GET path STEM LAST_ONLY name)
    file(READ ${path} text)
    string(APPEND rows "    {\"${name}\", R\"toml(${text})toml\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
"// Made by cmake/EmbeddedTexts.cmake of ${folder}.
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
