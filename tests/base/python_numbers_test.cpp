#include "base/json.h"

#include <gtest/gtest.h>

namespace longshore {
namespace {

Json read(const std::string& text) {
  return parse_json(python_numbers(text), {}, "config.json");
}

// Goal: numbers of any size that transformers writes into published files are read.
TEST(PythonNumbers, IntegersOfAnySizeAreReadAsReals) {
  const Json json = read("{\"model_max_length\": 1000000000000000019884624838656, \"a\": [-1" +
                         std::string(300, '0') + "]}");
  EXPECT_DOUBLE_EQ(json["model_max_length"].get<double>(), 1e30);
  EXPECT_DOUBLE_EQ(json["a"][0].get<double>(), -1e300);
  EXPECT_EQ(read("[18446744073709551615]")[0].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(read("[-9223372036854775808]")[0].get<int64_t>(), INT64_MIN);
  EXPECT_TRUE(read("[18446744073709551616]")[0].is_number_float());
}

// NaN, infinities and reals beyond fp64 become strings.
TEST(PythonNumbers, WhatIsNotFiniteBecomesAString) {
  const Json json =
      read("[NaN, Infinity, -Infinity, 1e400, -1.5e999, 1e-400, 1" + std::string(400, '0') + "]");
  EXPECT_EQ(json[0], "NaN");
  EXPECT_EQ(json[1], "Infinity");
  EXPECT_EQ(json[2], "-Infinity");
  EXPECT_EQ(json[3], "1e400");
  EXPECT_EQ(json[4], "-1.5e999");
  EXPECT_EQ(json[5], 0.0);
  EXPECT_TRUE(json[6].is_string());
}

// All other texts stay as they are, also where they are not JSON.
TEST(PythonNumbers, EverythingElseStaysAsItIs) {
  for (const char* text :
       {"", "{", "\"", "\"NaN 1000000000000000000000000000000\"", "{\"a\\\"NaN\": 1.5e3}",
        "[0.1, -2, 3e4, 5E-6]", "- -1 1-2 1e 1.2.3", "\xFF\"\\"}) {
    EXPECT_EQ(python_numbers(text), text);
  }
}

}  // namespace
}  // namespace longshore
