// Reads YAML as PyYAML's safe loader does, and refuses hostile YAML.
#include "hf/yaml.h"

#include <gtest/gtest.h>

#include "tests/hf/hf_fixtures.h"

namespace longshore {
namespace {

std::string json_of(const std::string& yaml, const JsonLimits& limits = {}) {
  return yaml_to_json(yaml, limits, "a.yaml").dump();
}

std::string refusal_of(const std::string& yaml, const JsonLimits& limits = {}) {
  return error_of<DataError>([&] { yaml_to_json(yaml, limits, "a.yaml"); });
}

std::string repeated(const std::string& part, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += part;
  return out;
}

// Lists, mappings, quotes, block texts, anchors and comments become JSON with the order of keys.
TEST(Yaml, ReadsWhatPeopleWrite) {
  EXPECT_EQ(json_of("# a run\nbase_model: org/model-8B  # the base\ndatasets:\n- path: a/b\n"
                    "  split: [train, \"te st\"]\n- {path: 'it''s', type: }\nz: 1\na: 2\n"),
            R"({"base_model":"org/model-8B","datasets":[{"path":"a/b","split":["train","te st"]},)"
            R"({"path":"it's","type":null}],"z":1,"a":2})");
  EXPECT_EQ(json_of("a: |\n  x\n   y\nb: >-\n  x\n  y\nc: \"\\u00e9\\n\\\n  z\"\n"),
            R"({"a":"x\n y\n","b":"x y","c":"é\nz"})");
  EXPECT_EQ(json_of("a: &one {x: 1}\nb: *one\nc: [*one, &k t, *k]\n&name d: *name\n"),
            R"({"a":{"x":1},"b":{"x":1},"c":[{"x":1},"t","t"],"d":"d"})");
  EXPECT_EQ(json_of("---\n- 1\n...\n"), "[1]");
  EXPECT_EQ(json_of("%YAML 1.1\n---\nx: 1\n"), R"({"x":1})");
  EXPECT_EQ(json_of("\xEF\xBB\xBFx: 1\r\ny: 2\r\n"), R"({"x":1,"y":2})");
  for (const char* nothing : {"", "\n", "# only a comment\n", "---\n", "~"}) {
    EXPECT_EQ(json_of(nothing), "null") << nothing;
  }
}

// Plain words have PyYAML's types; the expected values are what PyYAML 6.0.3 gives.
TEST(Yaml, TypesPlainWordsAsPyYamlDoes) {
  const std::vector<std::pair<std::string, std::string>> words = {
      {"yes", "true"},
      {"No", "false"},
      {"ON", "true"},
      {"off", "false"},
      {"true", "true"},
      {"y", R"("y")"},
      {"tRue", R"("tRue")"},
      {"null", "null"},
      {"NULL", "null"},
      {"None", R"("None")"},
      {"1e-4", R"("1e-4")"},
      {"1.0e-4", "0.0001"},
      {"1e4", R"("1e4")"},
      {"1.e+4", "10000.0"},
      {"1.0e4", R"("1.0e4")"},
      {"2e-5", R"("2e-5")"},
      {".5", "0.5"},
      {"-.5", R"("-.5")"},
      {"1.", "1.0"},
      {"-1.5", "-1.5"},
      {"+12", "12"},
      {"-7", "-7"},
      {"017", "15"},
      {"0o17", R"("0o17")"},
      {"08", R"("08")"},
      {"0x1F", "31"},
      {"0b101", "5"},
      {"1_000", "1000"},
      {"1_0.5_0", "10.5"},
      {"_1", R"("_1")"},
      {"1:30", "90"},
      {"-1:30", "-90"},
      {"1:60", R"("1:60")"},
      {"20:30.5", "1230.5"},
      {"0", "0"},
      {"-0", "0"},
      {"0.0", "0.0"},
      {"1.2.3", R"("1.2.3")"},
      {"--1", R"("--1")"},
      {"1 2", R"("1 2")"},
      {"0x", R"("0x")"},
      {"2024-01-02", R"("2024-01-02")"},
      {".inf", R"(".inf")"},
      {"-.INF", R"("-.INF")"},
      {".nan", R"(".nan")"},
      {"'1'", R"("1")"},
      {"\"yes\"", R"("yes")"},
      {"!!str 1", R"("1")"},
      {"! 1", "1"},
      {"!!float 1", "1.0"},
      {"!!int '5'", "5"},
      {"!!bool no", "false"},
      {"!!map {}", "{}"},
      {"!!seq []", "[]"},
  };
  for (const auto& [word, json] : words) {
    EXPECT_EQ(json_of("a: " + word), "{\"a\":" + json + "}") << word;
  }
  EXPECT_EQ(json_of("[18446744073709551615, 18446744073709551616, -9223372036854775808]"),
            R"([18446744073709551615,"18446744073709551616",-9223372036854775808])");
  EXPECT_EQ(json_of("[-9223372036854775809, 1" + repeated("0", 400) + ".0]"),
            "[\"-9223372036854775809\",\"1" + repeated("0", 400) + ".0\"]");
  EXPECT_EQ(json_of("{yes: 1, 1: 2, null: 3}"), R"({"yes":1,"1":2,"null":3})");
}

// A merge key adds the members that a mapping lacks; of several mappings the first one wins.
TEST(Yaml, MergesMappings) {
  EXPECT_EQ(json_of("base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\nrun:\n  y: 5\n  <<: *b\n"
                    "both:\n  <<: [*m, *b]\n  w: 6\n"),
            R"({"base":{"x":1,"y":2},"more":{"y":3,"z":4},"run":{"x":1,"y":5},)"
            R"("both":{"y":3,"z":4,"x":1,"w":6}})");
  EXPECT_EQ(json_of("\"<<\": 1"), R"({"<<":1})");
  expect_parts(refusal_of("a: 1\n<<: 3\n"), {"a.yaml: line 2, column 5", "takes a mapping"});
  expect_parts(refusal_of("<<: [{}, 3]\n"), {"takes a mapping"});
  expect_parts(refusal_of("<<: {a: 1}\n<<: {b: 1}\n"), {"line 2, column 1", "'<<' occurs twice"});
}

// Texts that are no YAML, or have no form in JSON, are refused with line and column.
TEST(Yaml, RefusesWithLineAndColumn) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"a: 1\nb: {x: 1, x: 2}\n", "line 2, column 11: key 'x' occurs twice"},
      {"a: 1\n'a': 2\n", "line 2, column 1: key 'a' occurs twice"},
      {repeated("n", 90) + ": 1\n" + repeated("n", 90) + ": 2\n",
       "key '" + repeated("n", 80) + "' occurs twice"},
      {"a:\n\t- 1\n", "line 2"},
      {"a: b: c\n", "line 1, column 5"},
      {"a: [1, 2\n", "line"},
      {"a: 'x\n", "line"},
      {"a: \"\\q\"\n", "line 1"},
      {"é: 1\na: *nothing\n", "line 2, column 4: while parsing node, found unknown anchor"},
      {"a: &x [*x]\n", "line 1, column 8: an alias of a value that contains it"},
      {"[a]: 1\n", "a key that is no scalar"},
      {"{a: 1}: 1\n", "a key that is no scalar"},
      {"a: !python/object:os.system x\n", "line 1, column"},
      {"a: !!set {x}\n", "the tag"},
      {"a: !!int x\n", "does not fit its value"},
      {"--- 1\n--- 2\n", "line 2, column 1: a second document"},
      {"ab: \xFF\n", "line 1, column 5: invalid UTF-8"},
      {"ok: é\nab: \xED\xA0\x80\n", "line 2, column 5: invalid UTF-8"},
      {std::string("a: 1\nb: \0x\n", 11), "line 2, column 4: a control character"},
      {"a: \x1b[2J\n", "line 1, column 4: a control character"},
  };
  for (const auto& [text, reason] : bad) {
    expect_parts(refusal_of(text), {"a.yaml: line ", reason});
  }
}

// The limits hold exactly, and count what aliases repeat.
TEST(Yaml, KeepsItsLimits) {
  EXPECT_EQ(json_of("[[[]]]", {.max_depth = 3}), "[[[]]]");
  expect_parts(refusal_of("[[[]]]", {.max_depth = 2}), {"column 3: nested deeper than 2"});
  EXPECT_EQ(json_of("- &a []\n- [*a]\n", {.max_depth = 3}), "[[],[[]]]");
  expect_parts(refusal_of("- &a []\n- [[*a]]\n", {.max_depth = 3}), {"nested deeper than 3"});
  EXPECT_EQ(json_of("[1, 2, 3]", {.max_values = 4}), "[1,2,3]");
  expect_parts(refusal_of("[1, 2, 3]", {.max_values = 3}), {"column 8: more than 3 values"});
  EXPECT_EQ(json_of("abc", {.max_bytes = 3}), R"("abc")");
  expect_parts(refusal_of("abcd", {.max_bytes = 3}), {"too long"});
  const std::string copies = "- &a " + std::string(100, 'x') + repeated("\n- *a", 20);
  expect_parts(refusal_of(copies, {.max_bytes = 1000}), {"more than 1000 bytes of text"});
}

// Texts that are made to cost memory, stack or time end in a refusal; long lines are read.
TEST(Yaml, SurvivesHostileTexts) {
  std::string laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n";
  std::string chain = "- &a0 []\n";
  for (int i = 1; i < 100; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    const std::string own = "&a" + std::to_string(i);
    laughs +=
        "a" + std::to_string(i) + ": " + own + " [" + repeated(before + ", ", 9) + before + "]\n";
    chain += "- " + own + " [" + before + "]\n";
  }
  expect_parts(refusal_of(laughs, {.max_values = 100'000}), {"100000 values, aliases included"});
  expect_parts(refusal_of(chain), {"nested deeper than 64"});
  std::string merges = "a0: &a0 {k0: 1}\n";
  for (int i = 1; i < 64; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    merges += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " {<<: [" +
              repeated(before + ", ", 9) + before + "], k" + std::to_string(i) + ": 1}\n";
  }
  EXPECT_EQ(yaml_to_json(merges, {}, "a.yaml").at("a63").size(), 64u);

  std::string indented;
  for (size_t i = 0; i < 1000; ++i) indented += std::string(i, ' ') + "a:\n";
  for (const std::string& nested :
       {std::string(1'000'000, '['), repeated("{a: ", 300'000), repeated("- ", 1'000'000),
        repeated("? ", 1'000'000), indented, repeated("[", 50'000) + repeated("]", 50'000)}) {
    EXPECT_NE(refusal_of(nested), "") << nested.substr(0, 20);
  }

  const std::string line(10'000'000, 'x');
  EXPECT_EQ(yaml_to_json("a: " + line, {}, "a.yaml").at("a").get<std::string>(), line);
  EXPECT_EQ(yaml_to_json("a: '" + line + "'", {}, "a.yaml").at("a").get<std::string>(), line);
  EXPECT_EQ(json_of("#" + line + "\na: 1"), R"({"a":1})");
  EXPECT_EQ(json_of("a: " + std::string(1'000'000, '1')),
            "{\"a\":\"" + std::string(1'000'000, '1') + "\"}");
  EXPECT_EQ(yaml_to_json("[" + repeated("a, ", 500'000) + "]", {}, "a.yaml").size(), 500'000u);
  expect_parts(refusal_of(line + ": 1"), {"line 1"});
}

}  // namespace
}  // namespace longshore
