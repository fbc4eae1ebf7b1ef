// SourceFiles: the sources of the repository, as the rules of style look at them. Test code.
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

// "path:line: ".
std::string at(const SourceFile& file, std::size_t line);
// A file by its path in the repository.
SourceFile read_source(const std::string& path);
// Every source file: C++, CUDA, Rust and Python.
const std::vector<SourceFile>& sources();

// The text with comments, literals and preprocessor lines blanked; line breaks stay where they are.
std::string only_code(std::string_view text);

}  // namespace longshore
