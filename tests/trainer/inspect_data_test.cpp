// `inspect data` as its user sees it: whole characters, and what is trained.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/trainer/temporary_directory.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

std::string printed(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  const int exit_code = run_command_line(arguments);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(exit_code, 0) << text;
  return text;
}

// A character that several tokens spell is shown as itself, in the terminal and on the page.
TEST(InspectData, ShowsCharactersWholeThatSeveralTokensSpell) {
  const TemporaryDirectory directory;
  const std::string at = directory.path();
  std::ofstream(at + "/rows.jsonl") << R"({"prompt": "Harbour?", "completion": "\u6f22\u5b57 é"})"
                                    << "\n";
  printed({"init-model", "--preset", "tiny-llama", at + "/model"});
  std::ofstream(at + "/run.toml") << "[run]\ndir = \"" << at << "/run\"\n[model]\npath = \"" << at
                                  << "/model\"\n[data]\ntrain = [\"" << at
                                  << "/rows.jsonl\"]\ncache = \"" << at
                                  << "/cache\"\nmax_tokens = 64\n[train]\nsteps = 1\n";
  const std::string text =
      printed({"inspect", "data", at + "/run.toml", "--html", at + "/page.html"});
  const std::string terminal = printed({"inspect", "data", at + "/run.toml"});
  EXPECT_NE(terminal.find("⟦漢字 é"), std::string::npos) << terminal;
  std::ifstream file(at + "/page.html");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(page.find(">漢</b>"), std::string::npos) << text;
}

}  // namespace
}  // namespace longshore
