// Patterns of Python over names of modules.
#include "base/name_pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/errors.h"

namespace longshore {
namespace {

using Scope = NamePattern::Scope;

// Goal: a name is matched where Python's re.fullmatch matches it; without Scope::kWhole also what
// follows one of its dots (peft.utils.other.get_pattern_key).
TEST(NamePattern, MatchesAsPeftDoes) {
  const std::string name = "model.layers.1.self_attn.q_proj";
  for (const std::string pattern :
       {"q_proj", "self_attn.q_proj", "self_attn\\.q_proj", "^model.layers.1.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj$", "[qk]_proj", "layers\\.\\d\\..*", "(?:q|k)_proj",
        "layers.1.self_attn.(?!k).*", "q_proj|k_proj", ".*", "(?=.*q)(?!.*k).*", ".*?q_proj",
        "q_{1,2}?proj", "[*+]?q_proj", "(?=(?:.*)q).*"}) {
    EXPECT_TRUE(NamePattern(pattern, Scope::kEnd).matches(name)) << pattern;
  }
  for (const std::string pattern : {"proj", "_proj", "^q_proj", "q_pro", "layers.1", "", "Q_proj",
                                    "layers.1?.self_attn.k_proj", "q_proj.weight"}) {
    EXPECT_FALSE(NamePattern(pattern, Scope::kEnd).matches(name)) << pattern;
  }
  EXPECT_FALSE(NamePattern("q_proj", Scope::kWhole).matches(name));
  EXPECT_TRUE(NamePattern(".*\\.q_proj", Scope::kWhole).matches(name));
  EXPECT_FALSE(NamePattern(".*", Scope::kEnd).matches(std::string(2000, 'a')));
}

// Goal: what std::regex would match otherwise than Python, and what could take long, is refused.
TEST(NamePattern, RefusesWhatItDoesNotRead) {
  for (const std::string pattern : {"(?i)q",
                                    "(?P<a>q)",
                                    "(?<=a)q",
                                    "(q)\\1",
                                    "q\\Z",
                                    "[]a]",
                                    "[^]]",
                                    "[[:alpha:]]",
                                    "(",
                                    "a{,3}",
                                    "((a?){999}){999}",
                                    "a{1,99999}",
                                    "a*+q",
                                    "a++",
                                    "a?+",
                                    "a**",
                                    "a{2}+",
                                    "a*?+",
                                    "(?=.*(?=.*q))",
                                    "(?!((?!q).)*)"}) {
    EXPECT_THROW(NamePattern(pattern, Scope::kEnd), ConfigError) << pattern;
  }
  EXPECT_THROW(NamePattern(std::string(9000, 'a') + "*", Scope::kEnd), ConfigError);
  EXPECT_THROW(NumbersByPattern(std::vector<PatternNumber>(5000, {"a", 1.0})), ConfigError);
}

}  // namespace
}  // namespace longshore
