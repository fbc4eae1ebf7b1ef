// Every fuzz target survives its corpus, and changes of it in a few bytes. The search for other
// inputs needs clang: scripts/dev/long fuzz.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/fakes/test_files.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {
namespace {

// These pieces turn damaged text into special cases.
constexpr const char* kPieces[] = {"\"",
                                   "{",
                                   "}",
                                   "[",
                                   "]",
                                   ",",
                                   ":",
                                   "\\",
                                   "\\u0000",
                                   "\\ud800",
                                   "\xFF",
                                   "0",
                                   "-1",
                                   "1e9",
                                   "null",
                                   "true",
                                   "\"F16\"",
                                   "4294967296",
                                   "\"shape\"",
                                   "\"dtype\"",
                                   " ",
                                   "\"a\"",
                                   "[0,0]",
                                   "&n ",
                                   "*n",
                                   "\n",
                                   "\n  ",
                                   "- ",
                                   ": ",
                                   "<<: ",
                                   "\t",
                                   "../",
                                   "=",
                                   "{{",
                                   "%}",
                                   "\x1e",
                                   "9223372036854775807",
                                   "18446744073709551615",
                                   "\"__metadata__\"",
                                   "model.safetensors"};

// Reads the bytes as they are: the program's own readers name what a file is not.
std::string input_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Mutator {
 public:
  std::string operator()(std::string text) {
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(text);
    return text;
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }

  void change(std::string& text) {
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(below(12), text.size() - at);
    const char* piece = kPieces[below(std::size(kPieces))];
    switch (below(5)) {
      case 0:
        text.insert(at, piece);
        break;
      case 1:
        text.replace(at, length, piece);
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(at, length * 4));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random_());
    }
  }

  std::mt19937 random_{11};
};

class Fuzz : public testing::TestWithParam<FuzzTarget> {
 protected:
  // Returns the paths of the corpus, in the same order everywhere.
  static std::vector<std::string> corpus() {
    std::vector<std::string> paths;
    const std::string folder = test_data() + "/fuzz/corpus/" + GetParam().name;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      paths.push_back(entry.path());
    }
    std::ranges::sort(paths);
    return paths;
  }
};

// Goal: every input of the corpus is read or refused with an error of its own; those named valid_*
// are accepted, so that what lies behind the parser is reached.
TEST_P(Fuzz, ItsCorpusIsReadOrRefused) {
  int valid = 0;
  for (const std::string& path : corpus()) {
    const bool should = std::filesystem::path(path).filename().string().starts_with("valid");
    SCOPED_TRACE(path);
    const bool accepted = accepts(GetParam(), input_of(path));
    EXPECT_TRUE(accepted || !should);
    valid += should ? 1 : 0;
  }
  EXPECT_GE(valid, 1);
}

// Goal: inputs that differ from the corpus in a few bytes are read or refused too.
TEST_P(Fuzz, DamageToItsCorpusIsReadOrRefused) {
  constexpr int kChanges = 1000;
  const std::vector<std::string> paths = corpus();
  Mutator mutate;
  for (int i = 0; i < kChanges; ++i) {
    const std::string& path = paths[static_cast<size_t>(i) % paths.size()];
    const std::string changed = mutate(input_of(path));
    SCOPED_TRACE(path + ", change " + std::to_string(i));
    accepts(GetParam(), changed);
  }
}

INSTANTIATE_TEST_SUITE_P(Parsers, Fuzz, testing::ValuesIn(fuzz_targets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace longshore
