// The commands that the program proposes: those in its source are parsed, and those that a first
// day prints are run as they are printed, in a directory whose name has a blank.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "base/json.h"
#include "config/field_table.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_tree.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr char kValue = '\x01';  // stands for what the program puts into a proposed command

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Returns a command line's words, without quotes.
Arguments words_of(const std::string& line) {
  Arguments words;
  std::string word;
  bool quoted = false, any = false;
  for (const char c : line) {
    if (c == '\'' || c == '"') {
      quoted = !quoted;
      any = true;
    } else if (c == ' ' && !quoted) {
      if (any) words.push_back(word);
      word.clear();
      any = false;
    } else {
      word += c;
      any = true;
    }
  }
  if (any) words.push_back(word);
  return words;
}

// Returns the proposed command lines of a text: those in backticks, and those that have an indented
// line alone, without the remark behind them.
std::vector<std::string> proposed(const std::string& text) {
  static const std::regex kProposed("`(longshore [^`]*)`|[\n\x01] +(longshore [^\n`]*)");
  std::vector<std::string> found;
  const std::string begun = "\n" + text;
  for (std::sregex_iterator at(begun.begin(), begun.end(), kProposed), none; at != none; ++at) {
    std::string line = (*at)[1].matched ? (*at)[1].str() : (*at)[2].str();
    line = line.substr(0, line.find("  "));
    found.push_back(line.substr(0, line.find(" # ")));
  }
  return found;
}

// Returns a source's texts, one a statement: values between literals are kValue, comments are gone.
std::string texts_of_source(const std::string& source) {
  static const std::regex kToken(R"re(//[^\n]*|R"\(([\s\S]*?)\)"|"((?:[^"\\\n]|\\.)*)")re"
                                 R"re(|'(?:[^'\\\n]|\\.)+'|[;{}]|\s+|[^\s"';{}/]+|.)re");
  std::string texts;
  bool value = false;
  for (std::sregex_iterator at(source.begin(), source.end(), kToken), none; at != none; ++at) {
    const std::string token = at->str();
    if (token.starts_with("//") || std::isspace(static_cast<unsigned char>(token[0]))) continue;
    if (token == ";" || token == "{" || token == "}") {
      texts += '\n';
      value = false;
      continue;
    }
    if (!(*at)[1].matched && !(*at)[2].matched) {
      value = true;
      continue;
    }
    if (value) texts += kValue;
    value = false;
    std::string text = (*at)[1].matched ? (*at)[1].str() : (*at)[2].str();
    if ((*at)[2].matched) {
      text = std::regex_replace(text, std::regex(R"(\\n)"), "\n");
      text = std::regex_replace(text, std::regex(R"(\\(.))"), "$1");
      text = std::regex_replace(text, std::regex("%l*[a-z]"), std::string(1, kValue));
    }
    texts += text;
  }
  return texts;
}

const CommandHelp* part_of(const CommandHelp& command, const std::string& name) {
  for (const CommandHelp& part : command.commands) {
    if (part.path.substr(part.path.rfind(' ') + 1) == name) return &part;
  }
  return nullptr;
}

const OptionWords* option_of(const CommandHelp& command, const std::string& name) {
  for (const OptionWords& option : command.options) {
    if (std::ranges::find(option.names, name) != option.names.end()) return &option;
  }
  return nullptr;
}

// Returns why the command line cannot be typed as it is, "" if it can. A command that reads a run
// file names one, unless it does something useful without.
std::string mistake_in(const Arguments& line) {
  static const CommandHelp program = program_help();
  const CommandHelp* command = &program;
  size_t arguments = 0;
  for (size_t i = 1; i < line.size(); ++i) {
    const std::string& word = line[i];
    if (word == "--") {
      Arguments rest = {"longshore"};
      rest.insert(rest.end(), line.begin() + static_cast<ptrdiff_t>(i) + 1, line.end());
      return mistake_in(rest);
    }
    if (word.starts_with("--") && word.find('.') < word.find('=')) {
      const bool known = std::ranges::any_of(run_file_sections(), [&word](const Section& section) {
        return std::ranges::any_of(section.keys, [&word](const Key& key) {
          return "--" + key.full_name() == word.substr(0, word.find('='));
        });
      });
      if (!command->takes_keys() || !known) return word + " is no key of it";
    } else if (word.starts_with("-")) {
      const OptionWords* option = option_of(*command, word);
      if (option == nullptr) return "it has no option " + word;
      if (option->takes_value && ++i == line.size()) return word + " has no value";
    } else if (!command->commands.empty()) {
      command = part_of(*command, word);
      if (command == nullptr) return "there is no command " + word;
    } else {
      ++arguments;
    }
  }
  if (!command->commands.empty()) return "the command is not complete";
  // These two need no run file: `init` writes run.toml where none is named.
  const bool alone = command->path == "check machine" || command->path == "init";
  if (command->takes_keys() && arguments == 0 && !alone) {
    return "it names no run file";
  }
  return "";
}

// Goal: every command in backticks, or on a line of its own, in a text of the program can be typed
// as it is printed: command, options, and a run file where one is read.
TEST(ProposedCommands, InTheSourceAreCompleteCommandLines) {
  size_t found = 0;
  for (const char* folder : {"config", "nvme", "offload", "pinned", "src", "trainer"}) {
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(test_data() + "/../" + folder)) {
      const std::string name = entry.path().string();
      if (!name.ends_with(".cpp") && !name.ends_with(".h")) continue;
      if (name.ends_with("shell_completion.cpp")) continue;  // shells' functions of that name
      for (std::string line : proposed(texts_of_source(read(entry.path())))) {
        if (line.starts_with(std::string("longshore ") + kValue)) continue;
        ++found;
        EXPECT_EQ(mistake_in(words_of(line)), "") << line << "\n  in " << name;
      }
    }
  }
  EXPECT_GE(found, 20u);
}

// A day in a directory of its own, which is the working directory until the end.
class FirstDay : public testing::Test {
 protected:
  FirstDay() : back_(fs::current_path()), directory_(scratch_directory("a first day")) {
    fs::create_directories(directory_);
    fs::current_path(directory_);
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", "a model"}).exit_code, 0);
    std::string rows;
    for (int i = 0; i < 24; ++i) {
      rows += R"({"text": "row )" + std::to_string(i) + R"( of the rows"})" + "\n";
    }
    write("my rows.jsonl", rows);
  }
  ~FirstDay() override {
    fs::current_path(back_);
    fs::remove_all(directory_);
  }

  // Runs the command and then, as it is printed, everything that it proposes, once.
  std::string follow(const Arguments& arguments, int exit_code = 0) {
    const Ended ended = run_command(arguments);
    EXPECT_EQ(ended.exit_code, exit_code) << ended.err;
    const std::string text = ended.out + ended.err;
    for (const std::string& line : proposed(text)) {
      if (std::ranges::find(done_, line) != done_.end()) continue;
      done_.push_back(line);
      Arguments words = words_of(line);
      words.erase(words.begin());
      for (std::string& word : words) {
        if (word == "DIR") word = "merged " + std::to_string(done_.size());
        if (word == "DIRECTORY") word = "a model";
        if (word == "FILE") word = "my rows.jsonl";
      }
      // These measure the machine for a minute, or start processes of the program's file.
      if (line.find("--rates") != std::string::npos || words[0] == "launch") {
        EXPECT_EQ(mistake_in(words_of(line)), "");
        continue;
      }
      if (words[0] == "init") fs::remove("run.toml");  // which it writes, as no other is named
      SCOPED_TRACE(line);
      follow(words);
    }
    expect_files_of_others(text);
    return text;
  }

  // Expects that what other programs are told to read is there.
  static void expect_files_of_others(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const Arguments words =
          words_of(line.substr(std::min(line.size(), line.find_first_not_of(' '))));
      if (words.size() < 3) continue;
      if (words[0] == "vllm" || words[0] == "python") {
        EXPECT_TRUE(fs::exists(words[2] + "/config.json")) << line;
      }
      if (words[0] == "hf") {
        EXPECT_TRUE(fs::exists(words[3] + "/config.json")) << line;
        EXPECT_NE(words[2].find('/'), std::string::npos) << line;
      }
    }
  }

  Arguments short_run(const Arguments& more) const {
    return joined({"train", "run.toml", "--train.epochs=0", "--train.steps=2"}, more);
  }

  std::vector<std::string> done_;
  fs::path back_;
  std::string directory_;
};

// Goal: what init, a run in full, its export and a run file of another trainer propose works.
TEST_F(FirstDay, OfARunInFull) {
  follow({"init", "run.toml", "--model", "a model", "--data", "my rows.jsonl"});
  EXPECT_GE(done_.size(), 3u);
  write("axolotl.yml",
        "base_model: a model\ndatasets:\n  - path: my rows.jsonl\n    type: completion\n"
        "sequence_len: 64\nmicro_batch_size: 2\nnum_epochs: 1\noutput_dir: axolotl\n");
  follow({"init", "its.toml", "--from", "axolotl.yml"});
  follow(short_run({"--run.dir=runs/in full"}));
  EXPECT_TRUE(fs::exists("runs/in full/hf/config.json"));
}

// Goal: a run of LoRA and one of DoRA say how to make a model that holds the adapter, and so does
// the export of another checkpoint.
TEST_F(FirstDay, OfAnAdapter) {
  follow({"init", "run.toml", "--model", "a model", "--data", "my rows.jsonl", "--adapter"});
  for (const std::string kind : {"lora", "dora"}) {
    const std::string run = "runs/my " + kind;
    const std::string text = follow(short_run({"--run.dir=" + run, "--adapter.kind=" + kind}));
    EXPECT_NE(text.find("  longshore export '" + run + "' --merged --to DIR"), std::string::npos)
        << text;
    EXPECT_FALSE(fs::exists(run + "/hf/config.json"));
    const std::string exported =
        follow({"export", run, "--from", run + "/checkpoints/step-00000002", "--to", "adapter"});
    EXPECT_NE(exported.find("--from 'runs/my " + kind + "/checkpoints"), std::string::npos);
    EXPECT_TRUE(fs::exists("merged " + std::to_string(done_.size()) + "/config.json"));
    fs::remove_all("adapter");
  }
}

// Goal: the advice of an error is a command that works.
TEST_F(FirstDay, OfMistakes) {
  for (const Arguments& mistake :
       std::vector<Arguments>{{"plan"}, {"train", "a model"}, {"train", "my rows.jsonl"}}) {
    follow(mistake, 2);
  }
  write("axolotl.yml",
        "base_model: a model\ndatasets:\n  - path: my rows.jsonl\n    type: completion\n");
  follow({"train", "axolotl.yml"}, 2);
  EXPECT_GE(done_.size(), 7u);
}

}  // namespace
}  // namespace longshore
