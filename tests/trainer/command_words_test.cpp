// Shell completion, and earlier names of commands.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "config/field_table.h"
#include "tests/fakes/command_run.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/commands/command_list.h"
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
  EXPECT_EQ(proposed("longshore check m"), "model machine ");
  EXPECT_EQ(proposed("longshore check run run.toml --optimizer.ov"), "--optimizer.overlap= ");
  EXPECT_EQ(proposed("longshore check model models --optimizer.ov"), " ");
  EXPECT_EQ(proposed("longshore init --rep"), "--replace ");
  EXPECT_EQ(proposed("longshore train run.toml --optimizer.ov"), "--optimizer.overlap= ");
  EXPECT_EQ(proposed("longshore train run.toml --optimizer.overlap = f"), "forward ");
  EXPECT_EQ(proposed("longshore train run.toml --data.packing ="), "true false ");
  // Names that come with the program are proposed for options, behind a space or "=".
  EXPECT_EQ(proposed("longshore init --goal f"), "fastest ");
  EXPECT_EQ(proposed("longshore init --goal = ba"), "balanced ");
  EXPECT_TRUE(has(proposed("longshore plan --machine rtx-40"), "rtx-4090 "));
  EXPECT_TRUE(has(proposed("longshore init --recipe qwen3-8"), "qwen3-8b_rtx-4090 "));
  EXPECT_TRUE(has(proposed("longshore init-model --preset tiny-q"), "tiny-qwen3 "));
  EXPECT_EQ(proposed("longshore train --log-level w"), "warning ");
  // Keys are proposed only for commands that read run files.
  EXPECT_FALSE(has(proposed("longshore init-model --"), "--optimizer."));
}

// Goal: fish too proposes keys for commands of two words that read run files, and for no others.
TEST(ShellCompletion, FishKnowsWhichCommandsTakeKeys) {
  const std::string script = completion_script("fish", program_help());
  const std::string seen = "__fish_seen_subcommand_from ";
  EXPECT_TRUE(has(script, "  " + seen + "check; and " + seen + "data; and return 0\n"));
  EXPECT_TRUE(has(script, "  " + seen + "train; and return 0\n"));
  EXPECT_FALSE(has(script, seen + "tokenizer; and " + seen + "train; and return 0\n"));
  EXPECT_TRUE(has(script, " -l goal -r -a 'balanced exact "));
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

// Returns the lines that tell of an old name.
std::vector<std::string> notices(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (has(line, "the old name works")) found.push_back(line);
  }
  return found;
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream words{std::string(text)};
  return {std::istream_iterator<std::string>(words), {}};
}

std::vector<std::string> joined(std::vector<std::string> words,
                                const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Goal: every old name of a command prints the same and ends the same as the new one, and names it
// once on standard error.
TEST(OldCommands, DoTheSameAsTheNewOnesAndNameThem) {
  for (const OldCommand& old : kOldCommands) {
    // Without arguments most commands end with exit code 2.
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{"--help"}, {}, {"--no-such-option"}, {"/nowhere", "--json"}}) {
      // The free bytes of this machine change between two calls, and `inspect` has no arguments.
      if (old.name == "doctor" && more.empty()) continue;
      if (old.name == "inspect" && more.size() == 2) continue;
      const Ended before = run_command(joined(words_of(old.name), more));
      const Ended now = run_command(joined(words_of(old.words), more));
      EXPECT_EQ(before.exit_code, now.exit_code) << old.name;
      EXPECT_EQ(before.out, now.out) << old.name;
      EXPECT_EQ(notices(now.err).size(), 0u) << now.err;
      const std::vector<std::string> said = notices(before.err);
      ASSERT_EQ(said.size(), 1u) << old.name << ": " << before.err;
      EXPECT_TRUE(has(said[0], "is now longshore " + std::string(old.words) + ";")) << said[0];
      EXPECT_EQ(before.err, said[0] + "\n" + now.err);
      const Ended quiet = run_command(joined({"-q"}, joined(words_of(old.name), more)));
      EXPECT_EQ(notices(quiet.err).size(), 0u) << quiet.err;
      EXPECT_EQ(quiet.exit_code, now.exit_code) << old.name;
    }
  }
}

// Goal: old names are found behind the options that may stand before a command, and nowhere else.
TEST(OldCommands, AreTheFirstWordsOnly) {
  const TemporaryDirectory directory;
  EXPECT_EQ(run_command({"--log-level", "info", "completion", "bash"}).out,
            completion_script("bash", program_help()));
  EXPECT_EQ(run_command({"help", "inspect", "data"}).out,
            run_command({"check", "data", "--help"}).out);
  EXPECT_EQ(run_command({"inspect", "-v", "data", "--help"}).out,
            run_command({"check", "data", "--help"}).out);
  const Ended ended = run_command({"report", "plot"});
  EXPECT_EQ(notices(ended.err).size(), 0u) << ended.err;
}

// Goal: an option or a command of another program gets the words of this one, or the reason why
// there are none; every suggested command exists.
TEST(OtherPrograms, TheirWordsAreAnswered) {
  const auto advice = [](const std::vector<std::string>& words) {
    const Ended ended = run_command(words);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    return ended.err;
  };
  const std::vector<std::pair<std::string, std::string>> options = {
      {"--model=m", "--model.path=DIRECTORY"},
      {"--data=d.jsonl", "--data.train=FILE"},
      {"--batch_size=8", "--train.sequences_per_step=VALUE"},
      {"--lr=1", "--optimizer.lr=VALUE"},
      {"--config=c.toml", "the run file is named without an option"},
      {"--deepspeed=z3.json", "Longshore shards the model over the ranks"}};
  for (const auto& [option, wanted] : options) {
    EXPECT_TRUE(has(advice({"train", "run.toml", option}), wanted)) << option;
  }
  EXPECT_TRUE(has(advice({"export", "run.toml", "--output", "x"}), "did you mean --to?"));
  EXPECT_TRUE(has(advice({"generate", "run.toml", "--max_new_tokens=5"}), "--max-new-tokens?"));
  EXPECT_TRUE(has(advice({"generate", "run.toml", "-p", "hi"}), "did you mean --prompt?"));
  EXPECT_FALSE(has(advice({"eval", "run.toml", "--output", "x"}), "--to"));
  EXPECT_TRUE(has(advice({"chat", "runs/a"}), "did you mean 'generate --chat'?"));
  for (const OldCommand& other : kOtherPrograms) {
    EXPECT_TRUE(has(advice({std::string(other.name)}), "'" + std::string(other.words) + "'"));
    const std::vector<std::string> help = joined({words_of(other.words).front()}, {"--help"});
    EXPECT_EQ(run_command(help).exit_code, 0) << other.words;
  }
}

// Goal: an error of the C++ library's file functions is said in our words.
TEST(ErrorsOfFiles, AreNotTheLibrarysWords) {
  const std::string name(300, 'a');
  const Ended ended = run_command({"report", name});
  EXPECT_NE(ended.exit_code, 0);
  EXPECT_TRUE(has(ended.err, name + ": File name too long")) << ended.err;
  EXPECT_FALSE(has(ended.err, "filesystem error")) << ended.err;
}

// Goal: commands read run.toml if no run file is named, and say so where there is none; `report`
// takes a run file, too.
TEST(RunFiles, RunTomlIsTheUsualOne) {
  const TemporaryDirectory directory;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const Ended none = run_command({"train"});
  std::ofstream("run.toml") << "[run]\ndir = \"runs/mine\"\n";
  const Ended found = run_command({"check", "run"});
  const Ended reported = run_command({"report"}), named = run_command({"report", "run.toml"});
  std::filesystem::current_path(before);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(has(none.err, "there is no run.toml here; `longshore init")) << none.err;
  EXPECT_TRUE(has(found.err, "run.toml")) << found.err;
  EXPECT_FALSE(has(found.err, "there is no run.toml here")) << found.err;
  EXPECT_TRUE(has(reported.err, "runs/mine/metrics.jsonl: no such file")) << reported.err;
  EXPECT_EQ(named.err, reported.err);
}

// Goal: every rank compares its GPU, because a comparison that did not run counts as passed; the
// other checks run on the first rank only.
TEST(CommandRanks, EveryRankComparesItsGpu) {
  const std::vector<std::pair<std::string, std::string>> second = {{"RANK", "1"},
                                                                   {"WORLD_SIZE", "2"},
                                                                   {"LOCAL_RANK", "1"},
                                                                   {"LOCAL_WORLD_SIZE", "2"},
                                                                   {"MASTER_ADDR", "127.0.0.1"},
                                                                   {"MASTER_PORT", "1"}};
  for (const auto& [name, value] : second) ::setenv(name.c_str(), value.c_str(), 1);
  const Ended gpu = run_command({"check", "gpu", "--gpu", "1023"});
  const Ended run = run_command({"check", "run", "/nowhere.toml"});
  for (const auto& [name, value] : second) ::unsetenv(name.c_str());
  EXPECT_EQ(gpu.exit_code, 2) << gpu.err;
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run_command({"check", "run", "/nowhere.toml"}).exit_code, 2);
}

// Goal: help and shell completion list today's commands only.
TEST(OldCommands, AreListedNowhere) {
  EXPECT_LE(all_commands().size(), 16u);
  const auto is_old = [](const std::string& path) {
    return std::ranges::any_of(kOldCommands,
                               [&](const OldCommand& old) { return old.name == path; });
  };
  const CommandHelp program = program_help();
  for (const CommandHelp& command : program.commands) EXPECT_FALSE(is_old(command.path));
  const std::string help = run_command({"--help"}).out;
  for (const OldCommand& old : kOldCommands) {
    EXPECT_FALSE(has(help, "\n  " + std::string(old.name) + " ")) << old.name;
    const std::string proposals = proposed("longshore " + words_of(old.name).front());
    for (const std::string& word : words_of(proposals)) EXPECT_NE(word, words_of(old.name).front());
  }
}

}  // namespace
}  // namespace longshore
