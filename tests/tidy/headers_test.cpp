// The first comment of a header says what is in the header.
#include <gtest/gtest.h>

#include <cctype>
#include <string_view>

#include "tests/tidy/source_files.h"

namespace longshore {
namespace {

// Returns the type that the first comment of a header names before a colon, else empty.
std::string_view type_named_first(std::string_view line) {
  if (!line.starts_with("// ") || line.size() < 4 || line[3] < 'A' || line[3] > 'Z') return {};
  std::size_t end = 3;
  while (end < line.size() && std::isalnum(static_cast<unsigned char>(line[end])) != 0) ++end;
  return end < line.size() && line[end] == ':' ? line.substr(3, end - 3) : std::string_view{};
}

// Returns whether code declares a type: its name follows "class", an attribute or the like, and
// not another one's "::".
bool declares_type(std::string_view code, std::string_view name) {
  for (std::size_t i = code.find(name); i != std::string_view::npos; i = code.find(name, i + 1)) {
    const std::size_t begin = code.find_last_of(";{}", i) + 1;
    const std::string_view head = code.substr(begin, i - begin);
    const char next = i + name.size() < code.size() ? code[i + name.size()] : ' ';
    const bool whole = i > 0 && std::isspace(static_cast<unsigned char>(code[i - 1])) != 0 &&
                       std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '_';
    if (!whole) continue;
    for (std::string_view word : {"class ", "struct ", "enum ", "using ", "concept "}) {
      if (head.find(word) != std::string_view::npos) return true;
    }
  }
  return false;
}

// Goal: a header that begins with the name of a type declares that type; a header of functions
// begins with a sentence.
TEST(TidyHeaders, TheTypeThatAHeaderNamesFirstIsInIt) {
  for (const SourceFile& file : sources()) {
    if (!file.has_extension({".h"}) || file.lines.empty()) continue;
    const std::string_view name = type_named_first(file.lines[0]);
    EXPECT_TRUE(name.empty() || declares_type(only_code(file.text), name))
        << at(file, 1) << "declares no type " << name << "; say in a sentence what is in here";
  }
}

// Goal: only a name before a colon counts as one, and only its declaration as such, not its use.
TEST(TidyHeaders, KnowsTheTypeThatAHeaderNamesFirst) {
  EXPECT_EQ(type_named_first("// StageRing: slots of a kind."), "StageRing");
  for (std::string_view line :
       {"// stage_ring: slots", "// Slots of a kind: two.", "/* Ring: */"}) {
    EXPECT_EQ(type_named_first(line), "") << line;
  }
  EXPECT_TRUE(declares_type("namespace a {\nclass ANNOTATED(\"x\") Ring {", "Ring"));
  EXPECT_TRUE(declares_type("using Ring = std::vector<int>;", "Ring"));
  EXPECT_FALSE(declares_type("class RingBuffer;\nRing make(const Ring& ring);", "Ring"));
}

}  // namespace
}  // namespace longshore
