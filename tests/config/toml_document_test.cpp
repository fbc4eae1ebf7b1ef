#include "config/toml_document.h"

#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "config/describe.h"
#include "tests/config/run_file_fixture.h"

namespace longshore {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Members come in the order of the text with line and column.
TEST(TomlDocument, GivesMembersInTheOrderOfTheTextWithTheirPlaces) {
  const std::vector<TomlMember> members =
      parse_toml("[z]\nb = 1\na = \"x\"\n[y]\n  c = [1.5, true]\n", "f.toml");
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].name, "z");
  ASSERT_EQ(members[0].value.members.size(), 2u);
  EXPECT_EQ(members[0].value.members[0].name, "b");
  EXPECT_EQ(members[0].value.members[1].value.place.text(), "f.toml:3:5");
  const TomlMember& c = members[1].value.members[0];
  EXPECT_EQ(c.place.text(), "f.toml:5:3");
  ASSERT_EQ(c.value.elements.size(), 2u);
  EXPECT_EQ(c.value.elements[0].real, 1.5);
}

// A single value is read as TOML, and any further text is refused.
TEST(TomlDocument, ReadsSingleValuesAndNothingMore) {
  EXPECT_EQ(parse_toml_value("[1, 2]", {"--x"})->elements.size(), 2u);
  EXPECT_EQ(parse_toml_value("'a'", {"--x"})->string, "a");
  EXPECT_EQ(parse_toml_value("'a'", {"--x"})->place.text(), "--x");
  for (const char* text : {"", "a", "1 2", "1\nb = 2", "[1", "}"}) {
    EXPECT_FALSE(parse_toml_value(text, {"--x"}).has_value()) << text;
  }
}

// Endless nesting is refused; toml++ destroys nested tables recursively (stack overflow).
TEST(TomlDocument, RefusesTextsThatNestWithoutEnd) {
  const int kDeep = 200'000;
  for (const std::string& text :
       {"a" + repeated(".a", kDeep) + " = 1", "[a" + repeated(".a", kDeep) + "]",
        "x = { a" + repeated(" . a", kDeep) + " = 1 }", "\"a\"" + repeated(".\"a\"", kDeep) + "=1",
        "s = \"\"\"\"\"\"\"\n" + ("a" + repeated(".a", kDeep)) + " = 1",
        "s = '''''''\n" + ("a" + repeated(".a", kDeep)) + " = 1", "x = " + repeated("[", kDeep),
        "x = " + repeated("{a=", kDeep)}) {
    EXPECT_THROW(parse_toml(text, "deep.toml"), ConfigError) << text.substr(0, 20);
  }
}

// Dots in strings and comments do not count as nesting.
TEST(TomlDocument, DotsInStringsAndCommentsDoNotNest) {
  const std::string dots(10'000, '.');
  for (const std::string& text :
       {"a = \"" + dots + "\"", "a = '" + dots + "'", "# " + dots + "\na = 1",
        "a = \"\"\"" + dots + "\n\\\"\"\"" + dots + "\"\"\"\"", "a = '''x''" + dots + "''''",
        "a = \"\\\"" + dots + "\"", "a = ['', \"" + dots + "\"]"}) {
    EXPECT_EQ(parse_toml(text, "dots.toml").size(), 1u) << text.substr(0, 20);
  }
}

// Characters beyond ASCII are read in strings and comments only. toml++ has undefined behaviour
// where it looks for blanks and finds these; the sanitizers find it if the test for blanks is left
// as it is.
TEST(TomlDocument, TakesCharactersBeyondAsciiInStringsAndCommentsOnly) {
  for (const char* text :
       {"a = +u'\xc3\xa9'", "a = -{\"\xc3\xa9", "a = 1\xc3\xa9", "\xc3\xa9 = 1", "a = [1 \xc3\xa9]",
        "a = \"\\\xc3\xa9\"", "a = 1 \xe3\x81\x82", "a = \"\xc3\"",
        "a = \xc2\xa0"
        "1",
        "s = \"\"\"\\\n\xc2\xa7"}) {
    EXPECT_THROW(parse_toml(text, "f.toml"), ConfigError) << text;
  }
  const std::string text =
      "\xef\xbb\xbf'\xc3\xa9' = ['\xe3\x81\x82`c3', \"\"\"\\\n  \xc3\xa9\\u00e9\\u0060c3\"\"\", 7] "
      "# "
      "\xc3\xa9";
  const std::vector<TomlMember> members = parse_toml(text, "f.toml");
  ASSERT_EQ(members.size(), 1u);
  EXPECT_EQ(members[0].name, "\xc3\xa9");
  ASSERT_EQ(members[0].value.elements.size(), 3u);
  EXPECT_EQ(members[0].value.elements[0].string, "\xe3\x81\x82`c3");
  EXPECT_EQ(members[0].value.elements[1].string, "\xc3\xa9\xc3\xa9`c3");
}

// Columns count characters, not bytes.
TEST(TomlDocument, ColumnsCountCharacters) {
  const std::vector<TomlMember> members =
      parse_toml("b = 1\n'\xc3\xa9`' = [ '\xe3\x81\x82', 7 ]", "f.toml");
  EXPECT_EQ(members[1].place.text(), "f.toml:2:1");
  EXPECT_EQ(members[1].value.place.text(), "f.toml:2:8");
  EXPECT_EQ(members[1].value.elements[1].place.text(), "f.toml:2:15");
}

// A quoted string of any characters reads back equal.
TEST(TomlDocument, QuotesEveryByteSoThatItReadsBack) {
  std::string text;
  for (int c = 1; c < 128; ++c) text += static_cast<char>(c);
  text += "\xc3\xa9";
  EXPECT_EQ(parse_toml_value(quote_toml(text), {"--x"})->string, text);
}

class RandomRunFiles : public RunFileFixture {};

// Random bytes are read or give a ConfigError; any other exception or report fails the test.
TEST_F(RandomRunFiles, AreReadOrGiveAConfigError) {
  std::mt19937 random(7);
  const std::string alphabet =
      std::string("[]{}=.,\"'#\\\n\r\t _-+:aeE0129xtTZ\xef\xbb\xbf\xc3\x7f") + '\0';
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (uint32_t i = random() % 60; i > 0; --i) text += alphabet[random() % alphabet.size()];
    try {
      parse_toml(text, "random.toml");
    } catch (const ConfigError&) {
      continue;
    }
    // Loading files costs more than parsing, so only valid TOML is loaded.
    if (round % 20 == 0) {
      EXPECT_NE(problems(text), "accepted");
    }
  }
}

// Damaged reference files are read or refused with a ConfigError.
TEST_F(RandomRunFiles, DamagedReferenceFilesAreReadOrRefused) {
  std::mt19937 random(8);
  const std::string reference = reference_toml();
  for (int round = 0; round < 100; ++round) {
    std::string text = reference;
    for (int change = 0; change < 3; ++change) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 20);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 20));
      }
    }
    EXPECT_NE(problems(text), "");
    parse_toml_value(text.substr(random() % text.size(), 20), {"--x"});
  }
}

}  // namespace
}  // namespace longshore
