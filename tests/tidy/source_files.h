// The sources of the repository for the style rules. Test code.
#pragma once

#include <cctype>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace longshore {

struct SourceFile {
  std::string path;  // relative to the repository
  std::string text;
  std::vector<std::string> lines;

  bool has_extension(std::initializer_list<std::string_view> wanted) const {
    for (std::string_view extension : wanted) {
      if (path.ends_with(extension)) return true;
    }
    return false;
  }
  bool is_cpp() const { return has_extension({".h", ".cpp", ".cu"}); }
};

// Returns "path:line: ".
std::string at(const SourceFile& file, std::size_t line);
// Reads a file by its path in the repository.
SourceFile read_source(const std::string& path);
// Returns every source file: C++, CUDA, Rust and Python.
const std::vector<SourceFile>& sources();

// Returns the text with comments, literals and preprocessor lines blanked; line breaks stay.
std::string only_code(std::string_view text);

}  // namespace longshore
