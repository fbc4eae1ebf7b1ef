#include "base/json.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace longshore {
namespace {

std::string error_of(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, limits, "a.json");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

// Every kind of value is read, and objects keep the order of their keys.
TEST(Json, ReadsEveryKindOfValueAndKeepsTheOrderOfKeys) {
  const Json json =
      parse_json(R"({"z": [1, -2, 2.5, true, null, "\u00e9"], "a": {"b": {}}})", {}, "a.json");
  EXPECT_EQ(json.dump(), R"({"z":[1,-2,2.5,true,null,"é"],"a":{"b":{}}})");
  EXPECT_EQ(json["z"][0].get<int64_t>(), 1);
  EXPECT_EQ(parse_json("  7 \n", {}, "a.json").get<int>(), 7);
  EXPECT_EQ(parse_json("18446744073709551615", {}, "a").get<uint64_t>(), UINT64_MAX);
}

// A key that occurs twice in one object is refused with its line and byte.
TEST(Json, RefusesTheSameKeyTwiceWithItsLine) {
  EXPECT_EQ(error_of("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}"),
            "a.json:3: key \"a\" occurs twice (byte 22)");
  EXPECT_EQ(error_of(R"({"x": {"a": 1}, "y": {"a": 1}})"), "accepted");
  EXPECT_EQ(error_of(R"([{"a": {"b": 1}, "a": 1}])"), "a.json:1: key \"a\" occurs twice (byte 20)");
}

// Texts that are not JSON are refused.
TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "{a:1}",
                           "'a'",
                           "// c\n1",
                           "/* c */ 1",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "NaN",
                           "Infinity",
                           "nul",
                           "1 2",
                           "{} x",
                           "[1]]",
                           "\"\x01\"",
                           "\"\\x\"",
                           "\"abc",
                           "{\"a\" 1}",
                           "{1: 2}",
                           "\"\\ud800\"",
                           "\"\\udc00 \"",
                           "\"\xff\"",
                           "\"\xc0\x80\"",
                           "\"\xed\xa0\x80\"",
                           "\"\xf5\x80\x80\x80\"",
                           "\xef\xbb"}) {
    const std::string error = error_of(text);
    EXPECT_EQ(error.rfind("a.json:", 0), 0u) << text << " gives " << error;
    EXPECT_NE(error.find("not JSON: "), std::string::npos) << error;
  }
}

// A syntax error names line, byte and reason.
TEST(Json, SaysWhereAndWhy) {
  EXPECT_EQ(error_of("{\"a\": 1,\n\"b\": ]}"),
            "a.json:2: not JSON: syntax error while parsing value - unexpected ']'; expected '[', "
            "'{', or a literal (byte 15)");
  EXPECT_EQ(error_of("\n\n\"\xff\""),
            "a.json:3: not JSON: syntax error while parsing value - invalid string: ill-formed "
            "UTF-8 byte (byte 4)");
}

// A NUL byte is refused, also after a complete value.
TEST(Json, RefusesBytesAfterANul) {
  EXPECT_EQ(error_of(std::string("{}\0{}", 5)), "a.json:1: not JSON: a NUL byte (byte 2)");
}

// Integers beyond 64 bits and reals beyond fp64 are refused.
TEST(Json, RefusesNumbersThatDoNotFit) {
  EXPECT_NE(error_of("[18446744073709551616]").find("an integer outside 64 bits"),
            std::string::npos);
  EXPECT_NE(error_of("[-9223372036854775809]").find("an integer outside 64 bits"),
            std::string::npos);
  EXPECT_NE(error_of("1e400").find("a number outside fp64"), std::string::npos);
}

// In rows as Python writes them, numbers that are not finite are null, and an integer that does not
// fit is a value of no other kind.
TEST(Json, RowsMayHoldNumbersThatPythonWrites) {
  const Json row = parse_python_json(
      R"({"a": NaN, "b": [-Infinity, Infinity], "c": 1e400, "d": "NaN 1e400", "e": 1e-400,
          "f": -123456789012345678901234567890, "g": 18446744073709551615, "h": 0.5})",
      {}, "a.json");
  EXPECT_TRUE(row["a"].is_null() && row["b"][0].is_null() && row["b"][1].is_null());
  EXPECT_TRUE(row["c"].is_null());
  EXPECT_EQ(row["d"], "NaN 1e400");
  EXPECT_EQ(row["e"], 0.0);
  EXPECT_TRUE(row["f"].is_binary());
  EXPECT_EQ(row["g"].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(row["h"], 0.5);
  EXPECT_THROW(parse_python_json("{\"a\": NaN, \"b\": nan}", {}, "a.json"), DataError);
  EXPECT_THROW(parse_python_json("{\"a\": 1", {}, "a.json"), DataError);
}

// Limits on depth, number of values and bytes hold exactly.
TEST(Json, KeepsItsLimits) {
  EXPECT_EQ(error_of("[[[]]]", {.max_depth = 3}), "accepted");
  EXPECT_EQ(error_of("[[[]]]", {.max_depth = 2}), "a.json:1: nested deeper than 2 (byte 3)");
  EXPECT_EQ(error_of("[1,2,3]", {.max_values = 4}), "accepted");
  EXPECT_EQ(error_of("[1,2,3]", {.max_values = 3}), "a.json:1: more than 3 values (byte 7)");
  EXPECT_EQ(error_of("[1,2,3]", {.max_bytes = 6}), "a.json: longer than the limit of 6 B");
  EXPECT_NE(error_of(std::string(1'000'000, '[')).find("nested deeper than 64"), std::string::npos);
}

// Large objects are read in linear time, although the library's own insertion scans all keys.
TEST(Json, ReadsLargeObjectsInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"k" + std::to_string(i) + "\":0,";
  text.back() = '}';
  EXPECT_EQ(parse_json(text, {}, "a.json").size(), 200'000u);
}

// Control characters of a key are escaped in error texts.
TEST(Json, QuotesStrangeKeysSafely) {
  EXPECT_EQ(error_of("{\"\\n\\u001b\":1,\"\\n\\u001b\":1}"),
            "a.json:1: key \"\\n\\u001b\" occurs twice (byte 24)");
}

}  // namespace
}  // namespace longshore
