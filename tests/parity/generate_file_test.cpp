// `generate --in --out`: what the lines hold, that an interrupted command goes on to the same
// bytes, and that bytes follow from nothing but prompts, settings and weights.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<Json> json_lines(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream stream(text_of_file(path));
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

int64_t lines_of(const std::string& path) {
  return std::ranges::count(text_of_file(path), '\n');
}

// A model that has learned one text and one conversation.
class GenerateFile : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    run_ = std::make_unique<RunDriver>("generate-file");
    const std::string folder = run_->directory();
    fs::create_directories(folder);
    ASSERT_EQ(run_command({"init-model", "--preset", "tiny-llama", folder + "/model"}).exit_code,
              0);
    write_text(folder + "/own.jinja",
               "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
               "{% if add_generation_prompt %}[assistant]{% endif %}");
    write_text(folder + "/rows.jsonl", "{\"text\": \"abcdefgh\"}\n");
    ASSERT_EQ(
        run_->train({"--model.path=\"" + folder + "/model\"",
                     "--data.train=[\"" + folder + "/rows.jsonl\"]",
                     "--data.chat_template=\"" + folder + "/own.jinja\"", "--data.max_tokens=96",
                     "--train.steps=40", "--train.sequences_per_step=1", "--optimizer.lr=0.01",
                     "--schedule.name=constant", "--precision.compute=fp32", "--device.threads=1",
                     "--offload.threads=1"}),
        0);
  }
  static void TearDownTestSuite() { run_.reset(); }

  static std::string path(const std::string& name) { return run_->directory() + "/" + name; }

  // Writes rows of prompts of several lengths, with members that answers carry on.
  static void write_prompts(const std::string& name, int rows) {
    std::string text;
    for (int i = 0; i < rows; ++i) {
      const std::string prompt = std::string("abcdefg").substr(static_cast<size_t>(i % 7)) +
                                 std::string(static_cast<size_t>(i % 5), 'x');
      text += Json{{"id", "row " + std::to_string(i)}, {"prompt", prompt}}.dump() + "\n";
    }
    write_text(path(name), text);
  }

  static Arguments words(const std::string& in, const std::string& out, const Arguments& more) {
    return joined({"generate", run_->directory(), "--in", path(in), "--out", path(out)}, more);
  }
  static Ended generate(const std::string& in, const std::string& out, const Arguments& more) {
    return run_command(words(in, out, more));
  }

  static std::unique_ptr<RunDriver> run_;
};

std::unique_ptr<RunDriver> GenerateFile::run_;

const Arguments kDrawn = {"--temperature", "2",  "--max-new-tokens", "24", "--samples", "2",
                          "--stop",        "ef", "--logprobs"};

// Goal: there is a line for each answer, in order, with the row's members, why it ended, and the
// log-probabilities of its tokens; the text ends before a stop string.
TEST_F(GenerateFile, HasALineForEachAnswer) {
  write_text(path("in"),
             "{\"id\": 7, \"prompt\": \"abc\"}\n\n"
             "{\"prompt\": \"a\", \"topic\": {\"x\": [1]}}\n");
  ASSERT_EQ(generate("in", "lines", {"--samples", "2", "--logprobs"}).exit_code, 0);
  const std::vector<Json> lines = json_lines(path("lines"));
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("index"), i / 2);
    EXPECT_EQ(lines[i].at("sample"), i % 2);
    EXPECT_EQ(lines[i].at("text"), i < 2 ? "defgh" : "bcdefgh");
    EXPECT_EQ(lines[i].at("finish"), "stop");
    const size_t tokens = lines[i].at("tokens").get<size_t>();
    EXPECT_EQ(tokens, i < 2 ? 5u : 7u);
    // The token that ended the answer is among them.
    EXPECT_EQ(lines[i].at("logprobs").at("tokens").size(), tokens + 1);
    for (const Json& logp : lines[i].at("logprobs").at("values")) {
      EXPECT_LT(logp.get<double>(), 0.0);
      EXPECT_GT(logp.get<double>(), -1.0) << "the model has learned this text";
    }
  }
  EXPECT_EQ(lines[0].at("id"), 7);
  EXPECT_FALSE(lines[2].contains("id"));
  EXPECT_EQ(lines[2].at("topic"), (Json{{"x", {1}}}));
  ASSERT_EQ(generate("in", "stopped", {"--stop", "ef"}).exit_code, 0);
  EXPECT_EQ(json_lines(path("stopped"))[0].at("text"), "d");
  EXPECT_EQ(json_lines(path("stopped"))[0].at("finish"), "stop_string");
  ASSERT_EQ(generate("in", "cut", {"--max-new-tokens", "2"}).exit_code, 0);
  EXPECT_EQ(json_lines(path("cut"))[1].at("text"), "bc");
  EXPECT_EQ(json_lines(path("cut"))[1].at("finish"), "length");
}

// Goal: any number of sequences at the same time gives the same bytes, drawn tokens and
// log-probabilities included, in fp32 and bf16.
TEST_F(GenerateFile, HasTheSameBytesWithAnyNumberOfSequences) {
  write_prompts("many", 30);
  for (const std::string compute : {"fp32", "bf16"}) {
    const Arguments drawn = joined(kDrawn, {"--precision.compute=" + compute});
    std::string wanted;
    for (const std::string count : {"1", "3", "64"}) {
      const std::string out = compute + "-" + count;
      ASSERT_EQ(generate("many", out, joined(drawn, {"--sequences", count})).exit_code, 0);
      const std::string found = text_of_file(path(out));
      if (wanted.empty()) wanted = found;
      EXPECT_EQ(lines_of(path(out)), 60);
      EXPECT_TRUE(found == wanted) << compute << " " << count;
    }
  }
}

// Goal: a process that is killed leaves whole lines, and the same command goes on to the bytes of
// one that was not interrupted; with a torn last line too.
TEST_F(GenerateFile, GoesOnWhereItWasKilled) {
  write_prompts("killed-in", 400);
  const Arguments drawn = joined(kDrawn, {"--sequences", "4"});
  ASSERT_EQ(generate("killed-in", "uninterrupted", drawn).exit_code, 0);
  const std::string wanted = text_of_file(path("uninterrupted"));
  Arguments all = joined({binary_directory() / "longshore"}, words("killed-in", "killed", drawn));
  std::vector<char*> list;
  for (std::string& word : all) list.push_back(word.data());
  list.push_back(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::execv(list.front(), list.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (fs::exists(path("killed")) && lines_of(path("killed")) >= 20) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  const std::string left = text_of_file(path("killed"));
  EXPECT_GE(lines_of(path("killed")), 20);
  EXPECT_LT(left.size(), wanted.size()) << "it ended before it was killed";
  EXPECT_TRUE(wanted.starts_with(left));
  const Ended ended = generate("killed-in", "killed", drawn);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(text_of_file(path("killed")) == wanted);
  write_text(path("killed"), wanted.substr(0, wanted.size() / 2));
  ASSERT_EQ(generate("killed-in", "killed", drawn).exit_code, 0);
  EXPECT_TRUE(text_of_file(path("killed")) == wanted);
  const Ended nothing = generate("killed-in", "killed", drawn);
  EXPECT_EQ(nothing.exit_code, 0);
  EXPECT_NE(nothing.err.find("nothing left to do"), std::string::npos) << nothing.err;
}

// Goal: a file of other settings, prompts or weights is not continued, and neither is one that is
// no file of answers; nothing of it changes.
TEST_F(GenerateFile, RefusesAFileOfOtherAnswers) {
  write_prompts("in", 6);
  ASSERT_EQ(generate("in", "first", {"--temperature", "1"}).exit_code, 0);
  const std::string before = text_of_file(path("first"));
  const auto refused = [&](const std::string& in, const Arguments& more, const std::string& said) {
    const Ended ended = generate(in, "first", more);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_NE(ended.err.find(said), std::string::npos) << ended.err;
    EXPECT_TRUE(text_of_file(path("first")) == before);
  };
  refused("in", {"--temperature", "1.5"}, "temperature was 1.0 and is 1.5");
  refused("in", {"--temperature", "1", "--from", "model"}, "step was 40 and is 0");
  refused("in", {"--temperature", "1", "--run.seed=9"}, "seed was 42 and is 9");
  write_prompts("in", 7);
  refused("in", {"--temperature", "1"}, "rows was 6 and is 7");
  write_text(path("first.settings.json"), "{");
  refused("in", {"--temperature", "1"}, "first.settings.json:1: not JSON");
  fs::remove(path("first.settings.json"));
  refused("in", {"--temperature", "1"}, "first.settings.json");
  const Ended same = generate("in", "in", {});
  EXPECT_EQ(same.exit_code, 2);
  EXPECT_NE(same.err.find("is the file of --in"), std::string::npos) << same.err;
  EXPECT_EQ(lines_of(path("in")), 7);
}

// Goal: rows that cannot be answered are named with file, line and remedy before anything is
// generated.
TEST_F(GenerateFile, NamesRowsThatCannotBeAnswered) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"{\"text\": \"abc\"}", "expected either \"prompt\""},
      {"{\"prompt\": 3}", "prompt: expected a string"},
      {"{\"prompt\": \"\"}", "prompt"},
      {"{\"prompt\": \"a\", \"messages\": []}", "found both"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "add --chat"},
      {"{\"prompt\": \"a\", \"finish\": 1}", "rename it"},
      {"{\"prompt\": \"" + std::string(90, 'a') + "\"}", "raise data.max_tokens"},
      {"[1]", "expected an object"},
      {"{\"prompt\": \"a\"", "not JSON"},
  };
  for (const auto& [row, said] : wrong) {
    write_text(path("wrong"), "{\"prompt\": \"abc\"}\n" + row + "\n");
    const Ended ended = generate("wrong", "none", {});
    EXPECT_EQ(ended.exit_code, 5) << row << ended.err;
    EXPECT_NE(ended.err.find(said), std::string::npos) << row << "\n" << ended.err;
    EXPECT_NE(ended.err.find("/wrong:2: "), std::string::npos) << ended.err;
    EXPECT_FALSE(fs::exists(path("none"))) << row;
  }
  write_text(path("wrong"), "\n");
  EXPECT_EQ(generate("wrong", "none", {}).exit_code, 5);
  EXPECT_EQ(run_command({"generate", run_->directory(), "--in", path("wrong")}).exit_code, 2);
}

// Goal: with --chat a row's messages, or its prompt as the user's message, are written by the
// template, with --system where they have no system message.
TEST_F(GenerateFile, AnswersConversations) {
  const std::string user = R"({"role": "user", "content": "abc"})";
  write_text(path("chats"), "{\"prompt\": \"abc\"}\n{\"messages\": [" + user + "]}\n" +
                                "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, " +
                                user + "]}\n");
  ASSERT_EQ(generate("chats", "plain", {"--chat", "--max-new-tokens", "9"}).exit_code, 0);
  ASSERT_EQ(
      generate("chats", "system", {"--chat", "--system", "S", "--max-new-tokens", "9"}).exit_code,
      0);
  const std::vector<Json> plain = json_lines(path("plain")), system = json_lines(path("system"));
  ASSERT_EQ(plain.size(), 3u);
  EXPECT_EQ(plain[0].at("text"), plain[1].at("text"));
  for (const Json& line : system) EXPECT_EQ(line.at("text"), plain[2].at("text"));
  write_text(path("chats"), R"({"messages": [{"role": "assistant", "content": "abc"}]})");
  const Ended last = generate("chats", "none", {"--chat"});
  EXPECT_EQ(last.exit_code, 5);
  EXPECT_NE(last.err.find("must be the one to answer"), std::string::npos) << last.err;
}

}  // namespace
}  // namespace longshore
