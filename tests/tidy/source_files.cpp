#include "tests/tidy/source_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Advances past the string or character literal that begins at `i`.
std::size_t end_of_literal(std::string_view text, std::size_t i) {
  const bool raw = text[i] == '"' && i > 0 && text[i - 1] == 'R';
  if (raw) {
    const std::size_t open = text.find('(', i);
    const std::string close = ")" + std::string(text.substr(i + 1, open - i - 1)) + "\"";
    const std::size_t end = text.find(close, open);
    return end == std::string_view::npos ? text.size() : end + close.size();
  }
  std::size_t j = i + 1;
  while (j < text.size() && text[j] != text[i] && text[j] != '\n') j += text[j] == '\\' ? 2 : 1;
  return std::min(j + 1, text.size());
}

// Returns whether the ' at `i` separates digits (1'000) rather than opening a character literal.
bool is_digit_separator(std::string_view text, std::size_t i) {
  return text[i] == '\'' && i > 0 && std::isxdigit(static_cast<unsigned char>(text[i - 1])) != 0;
}

std::size_t end_of_line(std::string_view text, std::size_t i) {
  while (i < text.size() && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
  return std::min(i, text.size());
}

bool starts_directive(std::string_view text, std::size_t i) {
  if (text[i] != '#') return false;
  while (i > 0 && (text[i - 1] == ' ' || text[i - 1] == '\t')) --i;
  return i == 0 || text[i - 1] == '\n';
}

}  // namespace

std::string at(const SourceFile& file, std::size_t line) {
  return file.path + ":" + std::to_string(line) + ": ";
}

SourceFile read_source(const std::string& path) {
  SourceFile file;
  file.path = path;
  std::ifstream in(fs::path(LONGSHORE_ROOT) / path, std::ios::binary);
  file.text.assign(std::istreambuf_iterator<char>(in), {});
  std::istringstream lines(file.text);
  for (std::string line; std::getline(lines, line);) file.lines.push_back(line);
  return file;
}

const std::vector<SourceFile>& sources() {
  static const std::vector<SourceFile> files = [] {
    const fs::path root = LONGSHORE_ROOT;
    const std::set<std::string> skipped = {"build", "runs", "models", "data", "target"};
    std::vector<SourceFile> found;
    for (auto it = fs::recursive_directory_iterator(root); it != fs::end(it); ++it) {
      const std::string name = it->path().filename().string();
      if (it->is_directory()) {
        const bool top = it.depth() == 0;
        if (name.starts_with('.') || name == "target" || (top && skipped.contains(name))) {
          it.disable_recursion_pending();
        }
        continue;
      }
      SourceFile probe{name, {}, {}};
      if (probe.is_cpp() || probe.has_extension({".rs", ".py"})) {
        found.push_back(read_source(fs::relative(it->path(), root).generic_string()));
      }
    }
    return found;
  }();
  return files;
}

std::string only_code(std::string_view text) {
  std::string code(text);
  std::size_t i = 0;
  while (i < text.size()) {
    std::size_t end = i + 1;
    bool blank = true;
    if (text.substr(i, 2) == "//" || starts_directive(text, i)) {
      end = end_of_line(text, i);
    } else if (text.substr(i, 2) == "/*") {
      const std::size_t close = text.find("*/", i + 2);
      end = close == std::string_view::npos ? text.size() : close + 2;
    } else if (text[i] == '"' || (text[i] == '\'' && !is_digit_separator(text, i))) {
      end = end_of_literal(text, i);
    } else {
      blank = false;
    }
    for (std::size_t j = i; blank && j < end; ++j) {
      if (code[j] != '\n') code[j] = ' ';
    }
    i = std::max(end, i + 1);
  }
  return code;
}

}  // namespace longshore
