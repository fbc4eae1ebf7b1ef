// configs: a small config.json, changes of it, and the problems that a reader finds in it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "model/families/families.h"

namespace longshore {

inline Json llama() {
  return Json::parse(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4})");
}

inline Json with(Json config, const std::string& more) {
  config.update(Json::parse(more));
  return config;
}

inline std::vector<std::string> problems_of(const Json& config) {
  try {
    read_arch_spec(config, "config.json");
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

inline void expect_problem(const Json& config, const std::string& part) {
  const auto problems = problems_of(config);
  ASSERT_EQ(problems.size(), 1u) << part;
  EXPECT_TRUE(problems[0].starts_with("config.json: ")) << problems[0];
  EXPECT_NE(problems[0].find(part), std::string::npos) << problems[0];
}

}  // namespace longshore
