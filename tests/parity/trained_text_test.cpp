// The text files of an export: the chat template of the training, and the tokens that end answers.
// Goal: a server of the export writes prompts as they were trained, and stops where the model
// learned to.
#include "trainer/model/trained_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/run_driver.h"
#include "text/chat_template.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMarkedTemplate =
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == \"assistant\" %}{% generation %}{{ m.content }}<|im_end|>"
    "{%- endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

std::string text_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_text_to(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Json json_in(const std::string& path) {
  return read_json_file(path, JsonLimits{});
}

// TrainedTextOfARun: a base model whose texts end with <|endoftext|>, without a chat template, and
// with the tokens of one in its vocabulary.
class TrainedTextOfARun : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(directory_);
    ASSERT_EQ(
        run_command({"init-model", "--preset", "tiny-llama", "--vocabulary", "300", path("model")})
            .exit_code,
        0);
    Json tokenizer = json_in(path("model/tokenizer.json"));
    int64_t next = 0;
    for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) {
      next = std::max(next, id.get<int64_t>() + 1);
    }
    for (const char* token : {"<|im_start|>", "<|im_end|>"}) {
      Json added = tokenizer["added_tokens"][0];
      added["id"] = end_ = next++;
      added["content"] = token;
      tokenizer["added_tokens"].push_back(added);
    }
    write_text_to(path("model/tokenizer.json"), tokenizer.dump());
    write_text_to(path("model/generation_config.json"),
                  "{\n  \"eos_token_id\": 0,\n  \"temperature\": 0.6\n}\n");
    write_text_to(path("t.jinja"), kMarkedTemplate);
    std::string rows;
    for (const char* answer : {"yo", "hello", "good day"}) {
      rows +=
          R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ")" +
          std::string(answer) + "\"}]}\n";
    }
    write_text_to(path("rows.jsonl"), rows);
    write_text_to(path("run.toml"),
                  "[data]\nmax_tokens = 128\n[train]\nsteps = 1\nsequences_per_step = 2\n"
                  "[precision]\ncompute = \"fp32\"\n[device]\nkind = \"cpu\"\nthreads = 1\n"
                  "[offload]\nthreads = 1\n");
  }
  ~TrainedTextOfARun() override { fs::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  Ended run(const Arguments& command, const Arguments& more = {}) const {
    return run_command(joined(
        command, joined({path("run.toml"), "--model.path=" + path("model"),
                         "--data.train=" + path("rows.jsonl"), "--data.cache=" + path("cache"),
                         "--data.chat_template=" + path("t.jinja"), "--run.dir=" + path("run")},
                        more)));
  }
  static std::string rendered(const ChatTemplate& chat, bool asked) {
    const Json messages = Json::array({{{"role", "user"}, {"content", "hi"}},
                                       {{"role", "assistant"}, {"content", "yo"}},
                                       {{"role", "user"}, {"content", "and?"}}});
    return chat.render(messages, {.add_generation_prompt = asked}).text;
  }

  int64_t end_ = 0;  // the id of <|im_end|>

 private:
  const std::string directory_ = scratch_directory("trained-text");
};

// An export has the trained chat template and the trained end tokens.
TEST_F(TrainedTextOfARun, IsInItsExport) {
  const Ended valid = run({"check", "run"});
  EXPECT_EQ(valid.exit_code, 0) << valid.err;
  const std::string note = "texts are trained to end with '<|im_end|>' (" + std::to_string(end_) +
                           "), and the model ends them with eos_token_id = [0]";
  EXPECT_TRUE(holds(valid.err, note)) << valid.err;
  const Ended trained = run({"train"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_TRUE(holds(trained.err, note)) << trained.err;

  ASSERT_EQ(run({"export"}, {"--to", path("again")}).exit_code, 0);
  const Tokenizer tokenizer = Tokenizer::load(path("model"));
  const ChatTemplate used =
      *ChatTemplate::load(path("model"), tokenizer, {.file = path("t.jinja")});
  for (const std::string& made : {path("run/hf"), path("again")}) {
    EXPECT_FALSE(holds(text_in(made + "/chat_template.jinja"), "generation %}"));
    const Tokenizer exported = Tokenizer::load(made);
    const ChatTemplate chat = *ChatTemplate::load(made, exported, {});
    for (const bool asked : {false, true}) {
      EXPECT_EQ(rendered(chat, asked), rendered(used, asked)) << made;
    }
    const Json generation = json_in(made + "/generation_config.json");
    EXPECT_EQ(generation.at("eos_token_id"), Json::array({end_, 0}));
    EXPECT_EQ(generation.at("temperature"), 0.6);
    EXPECT_EQ(text_in(made + "/config.json"), text_in(path("model/config.json")));
    const std::string card = text_in(made + "/README.md");
    EXPECT_TRUE(holds(card, "chat\\_template.jinja") || holds(card, "chat_template.jinja")) << card;
    EXPECT_TRUE(holds(card, "| `data.chat_template` | `\"t.jinja\"` |")) << card;
    EXPECT_TRUE(holds(card, "Texts were trained to end with")) << card;
  }
  EXPECT_EQ(run({"export"}, {"--from", "model", "--to", path("base")}).exit_code, 0);
  EXPECT_FALSE(fs::exists(path("base/chat_template.jinja"))) << "it was not trained";
}

// Goal: other templates of the base model are replaced by the trained one under every name.
TEST_F(TrainedTextOfARun, ReplacesTheTemplatesThatTheModelHad) {
  Json config = json_in(path("model/tokenizer_config.json"));
  config["chat_template"] = "{{ 'theirs' }}";
  write_text_to(path("model/tokenizer_config.json"), config.dump(2));
  fs::create_directories(path("model/additional_chat_templates"));
  write_text_to(path("model/additional_chat_templates/tool_use.jinja"), "{{ 'their tools' }}");
  write_text_to(path("model/chat_template.jinja"), "{{ 'theirs' }}");
  write_text_to(path("model/chat_template.json"), R"({"chat_template": "theirs"})");
  const Ended trained = run({"train"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::string hf = path("run/hf");
  EXPECT_FALSE(fs::exists(hf + "/additional_chat_templates"));
  EXPECT_FALSE(fs::exists(hf + "/chat_template.json"));
  EXPECT_FALSE(json_in(hf + "/tokenizer_config.json").contains("chat_template"));
  EXPECT_EQ(json_in(hf + "/tokenizer_config.json").at("eos_token"), config.at("eos_token"));
  EXPECT_TRUE(holds(text_in(hf + "/chat_template.jinja"), "<|im_start|>"));
  // Without trained conversations the base model's template is exported unchanged.
  write_text_to(path("rows.jsonl"), "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  const Ended theirs = run({"train"}, {"--checkpoint.resume=never"});
  ASSERT_EQ(theirs.exit_code, 0) << theirs.err;
  EXPECT_EQ(text_in(hf + "/chat_template.jinja"), "{{ 'theirs' }}");
  EXPECT_TRUE(fs::exists(hf + "/additional_chat_templates/tool_use.jinja"));
}

// Goal: the trained template is exported too where prompts and answers are messages, or become
// some.
TEST_F(TrainedTextOfARun, HasTheTemplateOfPromptsThatAreMessages) {
  const std::string lists = R"({"prompt": [{"role": "user", "content": "one"}],)"
                            R"( "completion": [{"role": "assistant", "content": "two"}]})";
  const std::string texts = R"({"prompt": "one", "completion": "two"})";
  for (const auto& [row, prompts] : {std::pair(lists, "auto"), std::pair(texts, "chat")}) {
    write_text_to(path("rows.jsonl"), row + "\n" + row + "\n");
    const Ended trained = run(
        {"train"}, {"--checkpoint.resume=never", std::string("--data.prompt_template=") + prompts});
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    EXPECT_TRUE(holds(text_in(path("run/hf/chat_template.jinja")), "<|im_start|>")) << prompts;
  }
}

// Goal: Alpaca's rows are conversations where there is a chat template, and each command says so. A
// run that began with their text is refused, with the key that continues it.
TEST_F(TrainedTextOfARun, HasInstructionsAsConversations) {
  const std::string row = R"({"instruction": "one", "input": "two", "output": "three"})";
  write_text_to(path("rows.jsonl"), row + "\n" + row + "\n");
  const std::string said = "the chat template writes 2 rows with an instruction";
  const std::string as_text = "--data.prompt_template=alpaca", room = "--data.max_tokens=256";
  EXPECT_TRUE(holds(run({"check", "data"}).out, said));
  const Ended began = run({"train"}, {as_text, room});
  ASSERT_EQ(began.exit_code, 0) << began.err;
  EXPECT_FALSE(holds(began.err, said)) << began.err;
  const Ended refused = run({"train"}, {"--train.steps=2", room});
  EXPECT_EQ(refused.exit_code, 6);
  EXPECT_TRUE(holds(refused.err, "data.prompt_template = \"alpaca\" restores that")) << refused.err;
  EXPECT_EQ(run({"train"}, {"--train.steps=2", as_text, room}).exit_code, 0);
  const Ended anew = run({"train"}, {"--checkpoint.resume=never", room});
  ASSERT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_TRUE(holds(anew.err, said)) << anew.err;
  EXPECT_TRUE(holds(text_in(path("run/hf/chat_template.jinja")), "<|im_start|>"));
}

// Goal: if no file names end tokens, the export gets one that does; config.json stays unchanged.
TEST_F(TrainedTextOfARun, NamesItsEndsInAFileOfItsOwn) {
  fs::remove(path("model/generation_config.json"));
  ASSERT_EQ(run({"train"}).exit_code, 0);
  const Json generation = json_in(path("run/hf/generation_config.json"));
  EXPECT_EQ(generation.at("eos_token_id"), Json::array({end_, 0}));
}

// Goal: a template whose end is no token of the vocabulary is reported before training.
TEST_F(TrainedTextOfARun, WithoutAnEndIsSaid) {
  write_text_to(
      path("t.jinja"),
      "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|stop|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}");
  for (const Arguments& command : {Arguments{"check", "run"}, {"train"}}) {
    const Ended ended = run(command);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_TRUE(holds(ended.err, "3 of 3 documents are not trained to end")) << ended.err;
  }
  EXPECT_EQ(json_in(path("run/hf/generation_config.json")).at("eos_token_id"), 0);
}

// Goal: plain texts that end like the model's need no message and change no file.
TEST_F(TrainedTextOfARun, OfPlainTextIsTheModelsOwn) {
  write_text_to(path("rows.jsonl"), "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  const Ended trained = run({"train"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_FALSE(holds(trained.err, "trained to end")) << trained.err;
  EXPECT_FALSE(fs::exists(path("run/hf/chat_template.jinja")));
  EXPECT_EQ(text_in(path("run/hf/generation_config.json")),
            text_in(path("model/generation_config.json")));
}

// Goal: a run with another directory's tokenizer exports that tokenizer.
TEST_F(TrainedTextOfARun, HasTheTokenizerThatTheRunWasGiven) {
  fs::create_directories(path("tokens"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::rename(path("model/") + name, path("tokens/") + name);
  }
  write_text_to(path("model/vocab.json"), "{}");
  ASSERT_EQ(run({"train"}, {"--tokenizer.path=" + path("tokens")}).exit_code, 0);
  EXPECT_EQ(text_in(path("run/hf/tokenizer.json")), text_in(path("tokens/tokenizer.json")));
  EXPECT_FALSE(fs::exists(path("run/hf/vocab.json"))) << "the other tokenizer's";
}

// Goal: the exported tokenizer is the one that texts were encoded with, although its files changed
// since.
TEST_F(TrainedTextOfARun, HasTheTokenizerAsItWasAtTheStart) {
  fs::copy(path("model"), path("tokens"));
  RunConfig config;
  config.model.path = path("model");
  config.tokenizer.path = path("tokens");
  const ModelSource source(config);
  const std::string before = text_in(path("tokens/tokenizer.json"));
  write_text_to(path("tokens/tokenizer.json"), "{}");
  fs::remove(path("tokens/tokenizer_config.json"));
  ExportTexts texts;
  add_trained_text(config, source, path("run"), texts);
  EXPECT_EQ(texts.files.at("tokenizer.json"), before);
  EXPECT_TRUE(texts.files.contains("tokenizer_config.json"));
}

}  // namespace
}  // namespace longshore
