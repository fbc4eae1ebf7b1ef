// Shell completion and the manual page. Goal: both have every command and key.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "config/field_table.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/commands/command_list.h"
#include "trainer/commands/manual_page.h"
#include "trainer/commands/shell_completion.h"

namespace longshore {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string output_of(const std::string& command) {
  std::string text;
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> part{};
  while (const size_t got = std::fread(part.data(), 1, part.size(), pipe)) {
    text.append(part.data(), got);
  }
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return text;
}

// Returns bash's proposals for a command line whose last word is being typed.
std::string proposed(const std::string& words) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("script");
  std::ofstream(path) << completion_script("bash", program_help()) << "COMP_WORDS=(" << words
                      << ")\n"
                      << "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
                      << "_longshore\nprintf '%s ' \"${COMPREPLY[@]}\"\n";
  return output_of("bash " + path);
}

// bash proposes commands, options, keys and choices.
TEST(ShellCompletion, ProposesCommandsOptionsKeysAndChoices) {
  EXPECT_EQ(proposed("longshore tra"), "train ");
  EXPECT_EQ(proposed("longshore config s"), "schema ");
  EXPECT_EQ(proposed("longshore init --rep"), "--replace ");
  EXPECT_EQ(proposed("longshore train run.toml --optimizer.ov"), "--optimizer.overlap= ");
  EXPECT_EQ(proposed("longshore train run.toml --optimizer.overlap = f"), "forward ");
  EXPECT_EQ(proposed("longshore train run.toml --data.packing ="), "true false ");
  // Keys are proposed only for commands that read run files.
  EXPECT_FALSE(has(proposed("longshore init-model --"), "--optimizer."));
}

// The completion scripts of every shell have every command and key.
TEST(ShellCompletion, KnowsEveryCommandAndKeyInEveryShell) {
  const CommandHelp program = program_help();
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell, program);
    for (const Command* command : all_commands()) {
      EXPECT_TRUE(has(script, command->name)) << shell;
    }
    for (const Section& section : run_file_sections()) {
      for (const Key& key : section.keys) EXPECT_TRUE(has(script, key.full_name())) << shell;
    }
  }
}

// The manual page has every command, key and exit code.
TEST(ManualPage, HasEveryCommandKeyAndExitCode) {
  const std::string page = manual_page(program_help());
  EXPECT_TRUE(page.starts_with(".TH LONGSHORE 1\n"));
  for (const Command* command : all_commands()) {
    std::string name = "longshore ";
    for (const char* c = command->name; *c != '\0'; ++c) {
      name += *c == '-' ? "\\-" : std::string(1, *c);
    }
    EXPECT_TRUE(has(page, name)) << name;
  }
  for (const Section& section : run_file_sections()) {
    for (const Key& key : section.keys) EXPECT_TRUE(has(page, "\\fB" + key.full_name() + "\\fR"));
  }
  EXPECT_TRUE(has(page, "\\fB128 + N\\fR\n"));
}

}  // namespace
}  // namespace longshore
