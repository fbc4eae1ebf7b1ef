// No function of the program is called by tests alone: such a function is deleted or moved to the
// tests. Names are counted, not resolved, so a function goes unnoticed if another one of its name
// is called.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/source_files.h"

namespace longshore {
namespace {

// Returns whether only tests may call the function; the table gives the reason.
bool is_for_tests(std::string_view name) {
  static const std::map<std::string_view, std::string_view> kWhy = {
      // These references are compared with kernels.
      {"adamw_step_reference", "of the update"},
      {"cast_and_square_cpu", "of the kernels"},
      // These counters and decisions are not visible otherwise.
      {"host_waits", "where the engine's thread blocked"},
      {"unregistered_bytes", "what the kernel would not pin"},
      {"backward_order", "which units backward leaves out"},
      {"best_loss", "what a restart must restore"},
      {"critical_path", "that the simulation knows what held what"},
      // It belongs to a library that is used beyond this program.
      {"broadcast", "the collectives are a whole set"},
  };
  return kWhy.contains(name);
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Returns the word that ends before `end`; empty if something else does.
std::string_view word_before(std::string_view code, std::size_t end) {
  std::size_t begin = end;
  while (begin > 0 && is_word(code[begin - 1])) --begin;
  return code.substr(begin, end - begin);
}

std::size_t skip_spaces_back(std::string_view code, std::size_t end) {
  while (end > 0 && std::isspace(static_cast<unsigned char>(code[end - 1])) != 0) --end;
  return end;
}

// Returns whether the name at `begin`, which a parenthesis follows, is declared or defined there: a
// type stands before it ("Type* name(", "Type Class::name(").
bool is_declared(std::string_view code, std::size_t begin) {
  static const std::set<std::string_view> kNoTypes = {"return", "else", "case",      "throw",
                                                      "new",    "do",   "co_return", "goto"};
  while (begin >= 2 && code.substr(begin - 2, 2) == "::") {
    const std::string_view scope = word_before(code, begin - 2);
    if (scope.empty()) return false;
    begin -= 2 + scope.size();
  }
  const std::size_t end = skip_spaces_back(code, begin);
  if (end == begin || end == 0) return false;  // nothing between: "(name(", "!name("
  const char last = code[end - 1];
  if (last == '*' || last == '&')
    return end >= 2 && (is_word(code[end - 2]) || code[end - 2] == '>');
  if (last == '>') return end < 2 || code[end - 2] != '-';
  const std::string_view word = word_before(code, end);
  return !word.empty() && !kNoTypes.contains(word);
}

struct Uses {
  int64_t declared = 0, other = 0;
  bool in_header = false;
};

// Counts for each function-like name of the program how often it is declared and otherwise used.
std::map<std::string, Uses, std::less<>> count_names() {
  std::map<std::string, Uses, std::less<>> names;
  for (const SourceFile& file : sources()) {
    if (!file.is_cpp() || file.path.starts_with("tests/")) continue;
    const std::string code = only_code(file.text);
    for (std::size_t i = 0; i < code.size(); ++i) {
      if (!is_word(code[i]) || (i > 0 && is_word(code[i - 1]))) continue;
      std::size_t end = i;
      while (end < code.size() && is_word(code[end])) ++end;
      Uses& uses = names[code.substr(i, end - i)];
      const bool called = end < code.size() && code[end] == '(';
      const bool declared = called && is_declared(code, i);
      ++(declared ? uses.declared : uses.other);
      uses.in_header = uses.in_header || (declared && file.path.ends_with(".h"));
    }
  }
  return names;
}

// Every function of a header is called by the program.
TEST(Unused, EveryFunctionIsCalledByTheProgram) {
  for (const auto& [name, uses] : count_names()) {
    const bool macro = name.starts_with("LONGSHORE_");
    if (!uses.in_header || uses.other > 0 || macro || is_for_tests(name)) continue;
    ADD_FAILURE() << name << ": only tests call it; delete it, or move it to them";
  }
}

// Goal: every exception still exists and is still called by tests only.
TEST(Unused, TheExceptionsAreExceptions) {
  const auto names = count_names();
  for (const auto& [name, uses] : names) {
    if (is_for_tests(name)) {
      EXPECT_EQ(uses.other, 0) << name << " is called by now";
    }
  }
  for (const char* name : {"adamw_step_reference", "host_waits", "broadcast"}) {
    EXPECT_TRUE(names.contains(name)) << name << " is gone";
  }
}

// Declarations are distinguished from calls.
TEST(Unused, DeclarationsAreToldFromCalls) {
  const auto declared = [](std::string_view code) { return is_declared(code, code.find("f(")); };
  EXPECT_TRUE(declared("int f(int);"));
  EXPECT_TRUE(declared("std::vector<int> f();"));
  EXPECT_TRUE(declared("const T& f() const;"));
  EXPECT_TRUE(declared("T* A::B::f() {"));
  EXPECT_FALSE(declared("x = f(1);"));
  EXPECT_FALSE(declared("return f(1);"));
  EXPECT_FALSE(declared("g(f(1));"));
  EXPECT_FALSE(declared("a * f(1)"));
  EXPECT_FALSE(declared("a->f(1)"));
  EXPECT_FALSE(declared("x < A::f(1)"));
}

}  // namespace
}  // namespace longshore
