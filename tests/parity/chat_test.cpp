// `generate --chat` and eval.prompts as messages: a model that has memorized two conversations
// answers by the chat template, and stops where the template ends an answer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

// Answers end with a token that ends no text of the tokenizer's.
constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

void add_end_token(const std::string& path) {
  std::ifstream file(path);
  Json tokenizer = Json::parse(file);
  file.close();
  tokenizer["added_tokens"].push_back({{"id", 257},
                                       {"content", "<|end|>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
  std::ofstream(path) << tokenizer.dump();
}

class ChatModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    run_ = std::make_unique<RunDriver>("chat");
    const std::string folder = run_->directory(), model = folder + "/model";
    ASSERT_EQ(run_command({"init-model", "--preset", "tiny-llama", "--vocabulary", "258", model})
                  .exit_code,
              0);
    add_end_token(model + "/tokenizer.json");
    std::ofstream(folder + "/own.jinja") << kTemplate;
    std::ofstream(folder + "/rows.jsonl")
        << R"({"messages": [{"role": "user", "content": "abc"},)"
        << R"({"role": "assistant", "content": "def\u00e9gh"},{"role": "user", "content": "and"},)"
        << R"({"role": "assistant", "content": "ijkl"}]})" << "\n"
        << R"({"messages": [{"role": "system", "content": "S"},)"
        << R"({"role": "user", "content": "abc"},)"
        << R"({"role": "assistant", "content": "xyz"}]})" << "\n";
    ASSERT_EQ(run_->train(arguments()), 0);
  }
  static void TearDownTestSuite() { run_.reset(); }

  static Arguments arguments() {
    const std::string folder = run_->directory();
    return {"--model.path=\"" + folder + "/model\"",
            "--data.train=[\"" + folder + "/rows.jsonl\"]",
            "--data.eval=[\"" + folder + "/rows.jsonl\"]",
            "--data.chat_template=\"" + folder + "/own.jinja\"",
            "--data.max_tokens=256",
            "--train.steps=100",
            "--train.sequences_per_step=1",
            "--optimizer.lr=0.01",
            "--precision.compute=fp32",
            "--device.threads=1",
            "--offload.threads=1",
            "--eval.prompts=[\"abc\"]",
            "--eval.max_new_tokens=12"};
  }

  static Ended chat(const Arguments& more, const std::string& limit = "12") {
    return run_command(
        joined({"generate", run_->directory(), "--chat", "--max-new-tokens", limit}, more));
  }
  // Returns the text of each JSON line of the command's output.
  static std::vector<std::string> texts_of(const Ended& ended) {
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    std::vector<std::string> texts;
    std::istringstream lines(ended.out);
    for (std::string line; std::getline(lines, line);) {
      texts.push_back(Json::parse(line).at("text").get<std::string>());
      EXPECT_TRUE(Json::parse(line).at("ended").get<bool>()) << line;
    }
    return texts;
  }

  static std::unique_ptr<RunDriver> run_;
};

std::unique_ptr<RunDriver> ChatModel::run_;

// Standard input of this process, for the lifetime of the object.
class Typed {
 public:
  explicit Typed(const std::string& text) : text_(text), former_(std::cin.rdbuf(text_.rdbuf())) {
    std::cin.clear();
  }
  ~Typed() { std::cin.rdbuf(former_); }

 private:
  std::istringstream text_;
  std::streambuf* former_;
};

using Texts = std::vector<std::string>;

// Goal: a prompt is the user's message, and the answer ends with the template's end token, which
// is not among the model's.
TEST_F(ChatModel, AnswersPromptsByTheTemplate) {
  EXPECT_EQ(texts_of(chat({"--json", "--prompt", "abc"})), Texts{"def\xC3\xA9gh"});
  EXPECT_EQ(texts_of(chat({"--json", "--prompt", "abc", "--system", "S"})), Texts{"xyz"});
  const Ended several = chat({"--prompt", "abc", "--prompt", "abc"});
  EXPECT_EQ(several.out, "def\xC3\xA9gh\ndef\xC3\xA9gh\n") << several.err;
}

// Goal: without a prompt, lines of standard input are one conversation until /reset, and the input
// may end with /exit.
TEST_F(ChatModel, TakesLinesAsOneConversation) {
  const Typed typed("abc\n\nand\n/reset\nabc\n/exit\nabc\n");
  const Ended ended = chat({});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.out, "def\xC3\xA9gh\nijkl\ndef\xC3\xA9gh\n");
}

// Goal: a line that cannot be answered is named, costs the conversation nothing, and shows in the
// exit code.
TEST_F(ChatModel, GoesOnBehindALineThatIsNoText) {
  const Typed typed("abc\n\xFF\xFE\n" + std::string(4000, 'a') + "\nand\n");
  const Ended ended = chat({});
  EXPECT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_EQ(ended.out, "def\xC3\xA9gh\nijkl\n");
  EXPECT_NE(ended.err.find("it is not UTF-8; the conversation goes on"), std::string::npos)
      << ended.err;
}

// Goal: the end of standard input ends the chat, and --system stays after /reset.
TEST_F(ChatModel, EndsWithItsInput) {
  const Typed typed("/reset\nabc");
  EXPECT_EQ(texts_of(chat({"--json", "--system", "S"})), Texts{"xyz"});
}

// Goal: an answer that the limit cuts is named.
TEST_F(ChatModel, NamesACutAnswer) {
  const Ended ended = chat({"--prompt", "abc"}, "3");
  EXPECT_EQ(ended.out, "def\n");
  EXPECT_NE(ended.err.find("cut after 3 tokens (--max-new-tokens)"), std::string::npos);
}

// Goal: what cannot be a chat is refused with the reason.
TEST_F(ChatModel, RefusesWhatIsNoChat) {
  const Ended base = chat({"--prompt", "abc", "--data.chat_template=auto"});
  EXPECT_EQ(base.exit_code, 2);
  EXPECT_NE(base.err.find("has no chat template"), std::string::npos) << base.err;
  EXPECT_NE(base.err.find("data.chat_template"), std::string::npos) << base.err;
  const Ended bytes = chat({"--prompt", "a\xFF"});
  EXPECT_EQ(bytes.exit_code, 2) << bytes.err;
  const Ended nothing = run_command({"generate", run_->directory()});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.err.find("--chat"), std::string::npos) << nothing.err;
  EXPECT_EQ(
      run_command({"generate", run_->directory(), "--prompt", "a", "--system", "S"}).exit_code, 2);
}

std::string last_sample(const RunDriver& run) {
  std::string text;
  for (const Json& event : run.metrics("event")) {
    if (event.value("code", "") == "sample") text = event.at("text").get<std::string>();
  }
  return text;
}

// Goal: a run on conversations asks eval.prompts as the user's messages; as texts where the run
// file says so.
TEST_F(ChatModel, SamplesOfARunAreAnswers) {
  EXPECT_EQ(last_sample(*run_), "abc\n  def\xC3\xA9gh");
  const RunDriver texts("chat-texts");
  ASSERT_EQ(texts.train(joined(arguments(), {"--eval.prompt_format=text"})), 0);
  const std::string sample = last_sample(texts);
  EXPECT_EQ(sample.rfind("abc", 0), 0u) << sample;
  EXPECT_EQ(sample.find("\n  def"), std::string::npos) << sample;
}

}  // namespace
}  // namespace longshore
