// Tests the report of `longshore check model` on a chat template: conversations with thoughts,
// calls of tools, results last, letters that the template's words share, and empty contents.
#include "trainer/verify/text_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/fakes/test_files.h"
#include "tests/trainer/temporary_directory.h"

namespace longshore {
namespace {

const std::string kTurns =
    "{% for m in messages %}[{{ m.role }}] {{ m.content }} END\n{% endfor %}";
const std::string kAsks = "{% if add_generation_prompt %}[assistant] {% endif %}";

std::string published_template(const std::string& name) {
  std::ifstream file(test_data() + "/text/published_templates/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns "conversation: detail" of each finding on the template with the given verdict.
std::vector<std::string> said_of(const std::string& chat_template, Verdict verdict) {
  const TemporaryDirectory directory;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy(test_data() + "/text/golden/bytes/" + file, directory.path());
  }
  std::ofstream(directory.file("chat_template.jinja")) << chat_template;
  ArchSpec arch;
  arch.vocabulary = 1 << 20;
  Findings findings;
  check_texts(directory.path(), arch, findings);
  std::vector<std::string> said;
  for (const Finding& finding : findings.lines()) {
    if (finding.check != "template" || finding.verdict != verdict) continue;
    said.push_back(finding.subject + ": " + finding.detail);
  }
  return said;
}

bool says(const std::vector<std::string>& lines, const std::string& words) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Goal: templates that train whole answers are right, also where their words share letters with
// answers, and where thoughts are turned off.
TEST(TextCheck, FindsNothingWrongWithTemplatesThatTrainWholeAnswers) {
  const std::string steps =
      kTurns + "{% if add_generation_prompt %}[assistant] Step by step: {% endif %}";
  for (const std::string& source :
       {kTurns + kAsks, steps, published_template("qwen3"), published_template("llama3_2"),
        published_template("glm4moe")}) {
    SCOPED_TRACE(source.substr(0, 80));
    const auto right = said_of(source, Verdict::kOk);
    for (const char* name : {"one answer", "two answers", "a system message", "thoughts",
                             "thoughts turned off", "an empty answer"}) {
      EXPECT_TRUE(says(right, std::string(name) + ": ")) << name << "\n" << joined(right);
    }
    EXPECT_FALSE(says(said_of(source, Verdict::kWarning), "is trained"));
    EXPECT_FALSE(says(said_of(source, Verdict::kWarning), "are refused"));
  }
  EXPECT_TRUE(says(said_of(steps, Verdict::kOk), "shared letters: "));
  EXPECT_TRUE(says(said_of(published_template("qwen3"), Verdict::kOk), "a call: "));
}

TEST(TextCheck, NamesWhatTheTemplateDoesNotWrite) {
  const auto skipped = said_of(kTurns + kAsks, Verdict::kSkipped);
  for (const char* line :
       {"a call: 1 calls of tools are not written", "a call: nothing of an answer is written",
        "thoughts: 2 thoughts are not written", "tools: 1 tools are not written"}) {
    EXPECT_TRUE(says(skipped, line)) << line << "\n" << joined(skipped);
  }
  const std::string no_system =
      "{% for m in messages if m.role != 'system' %}[{{ m.role }}] {{ m.content }}\n{% endfor %}" +
      kAsks;
  const auto warnings = said_of(no_system, Verdict::kWarning);
  EXPECT_TRUE(says(warnings, "a system message: 1 system messages or results of tools are not "))
      << joined(warnings);
}

TEST(TextCheck, SaysWhichRowsAreRefused) {
  const auto warnings = said_of(
      "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% if m.role == 'assistant' %} (asked: "
      "{{ messages[loop.index0 - 1].content }}){% endif %}\n{% endfor %}" +
          kAsks,
      Verdict::kWarning);
  EXPECT_TRUE(says(warnings,
                   "one answer: such rows are refused: messages[0]: the chat template "
                   "writes a part of this message among the words of an answer"))
      << joined(warnings);
}

}  // namespace
}  // namespace longshore
