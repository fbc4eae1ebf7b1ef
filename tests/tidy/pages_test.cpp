// The pages for people: those of the root, docs, and NOTES.md beside the code. Their links lead
// somewhere, and their lines can be read in a terminal and in a diff.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/tidy/source_files.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostCharacters = 160;

std::vector<SourceFile> pages() {
  std::vector<SourceFile> found;
  for (const char* name : {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md",
                           "AGENTS.md", "CHANGELOG.md", "tests/SOURCES.md"}) {
    found.push_back(read_source(name));
  }
  const fs::path root = LONGSHORE_ROOT;
  for (const char* folder : {"docs", "src", "nvme", "offload", "trainer"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".md") continue;
      found.push_back(read_source(fs::relative(entry.path(), root).string()));
    }
  }
  return found;
}

// Returns the anchor that GitHub gives to a heading: small letters, blanks as dashes, no marks.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) || c == '-' || c == '_' || letter >= 128) {
      anchor += static_cast<char>(std::tolower(letter));
    } else if (c == ' ') {
      anchor += '-';
    }
  }
  return anchor;
}

std::set<std::string> anchors_of(const SourceFile& page) {
  std::set<std::string> anchors;
  for (const std::string& line : page.lines) {
    if (!line.starts_with('#')) continue;
    anchors.insert(anchor_of(line.substr(std::min(line.find(' ') + 1, line.size()))));
  }
  return anchors;
}

// Goal: every link of a page to a file of the repository, and to a heading, leads there.
TEST(Pages, LinksLeadSomewhere) {
  const std::regex link(R"(\]\(([^)\s]+)\))");
  size_t found = 0;
  for (const SourceFile& page : pages()) {
    for (std::sregex_iterator at(page.text.begin(), page.text.end(), link), none; at != none;
         ++at) {
      const std::string target = (*at)[1].str();
      if (target.find("://") != std::string::npos || target.starts_with("mailto:")) continue;
      ++found;
      const std::string file = target.substr(0, target.find('#'));
      const fs::path path = file.empty()
                                ? fs::path(page.path)
                                : (fs::path(page.path).parent_path() / file).lexically_normal();
      if (!fs::exists(fs::path(LONGSHORE_ROOT) / path)) {
        ADD_FAILURE() << page.path << ": there is no " << path.string();
        continue;
      }
      if (target.find('#') == std::string::npos || path.extension() != ".md") continue;
      EXPECT_TRUE(
          anchors_of(read_source(path.string())).contains(target.substr(target.find('#') + 1)))
          << page.path << ": no such heading: " << target;
    }
  }
  EXPECT_GE(found, 100u);
}

// Goal: lines of prose are short; a row of a table and a line of code cannot be broken.
TEST(Pages, LinesOfProseAreShort) {
  for (const SourceFile& page : pages()) {
    bool code = false;
    for (size_t i = 0; i < page.lines.size(); ++i) {
      const std::string& line = page.lines[i];
      if (line.starts_with("```")) code = !code;
      if (code || line.starts_with('|') || line.starts_with("    ")) continue;
      const auto starts_one = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
      EXPECT_LE(static_cast<size_t>(std::ranges::count_if(line, starts_one)), kMostCharacters)
          << at(page, i);
    }
  }
}

}  // namespace
}  // namespace longshore
