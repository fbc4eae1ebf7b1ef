// Tokens that a run adds to its tokenizer (tokenizer.add_tokens, tokenizer.add_special_tokens), and
// the rows that the model gets for them, agree with transformers.
#include "trainer/model/added_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/errors.h"
#include "hf/safetensors_reader.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/sketch.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/input_check.h"
#include "trainer/model/model_source.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

const Arguments kTokens = {R"(--tokenizer.add_tokens=["<a>", "<b>"])",
                           R"(--tokenizer.add_special_tokens=["<c>"])"};
constexpr int64_t kRows = 257;  // of the golden models
constexpr int64_t kAdded = 3;

std::string golden_tokens(const std::string& name) {
  return test_data() + "/parity/golden_tokens/" + name;
}

Json json_in(const std::string& path) {
  return read_json_file(path, JsonLimits{});
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Tokens: a golden model with a tokenizer of its own, whose ids are the bytes and, unless it is
// shorter than the model's table, <s>.
class Tokens : public testing::TestWithParam<std::string> {
 protected:
  Tokens() : run_("added-tokens-" + GetParam()) {
    fs::create_directories(run_.directory());
    fs::copy(golden_directory(GetParam()), model());
    write_tokenizer(true);
  }

  std::string model() const { return run_.directory() + "/model"; }
  std::string hf() const { return run_.directory() + "/hf"; }

  void write_tokenizer(bool begins) const {
    Json tokenizer = json_in(test_data() + "/text/golden/bytes/tokenizer.json");
    const Json begin = tokenizer.at("added_tokens").at(0);
    tokenizer["added_tokens"] = begins ? Json::array({begin}) : Json::array();
    tokenizer["post_processor"] = nullptr;
    std::ofstream(model() + "/tokenizer.json") << tokenizer.dump(1);
    Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
    if (begins) {
      Json entry = begin;
      entry.erase("id");
      config["eos_token"] = "<s>";
      config["added_tokens_decoder"] = {{"256", entry}};
    }
    std::ofstream(model() + "/tokenizer_config.json") << config.dump(1);
  }

  Arguments arguments(const Arguments& more = {}) const {
    return joined(joined(RunDriver::golden_arguments(GetParam()), kTokens),
                  joined({"--model.path=\"" + model() + "\"",
                          "--data.train=[\"" + golden_tokens(GetParam()) + "/train.jsonl\"]"},
                         more));
  }
  // Runs `longshore train` as run_ does, and keeps what it prints.
  Ended trained(const Arguments& more) const {
    std::ofstream(run_.directory() + "/empty.toml").close();
    return run_command(joined(joined({"train", run_.directory() + "/empty.toml"}, arguments(more)),
                              {"--run.dir=\"" + run_.directory() + "\"",
                               "--data.cache=\"" + run_.directory() + "/cache\""}));
  }
  RunConfig config() const {
    RunConfig made;
    made.model.path = model();
    made.tokenizer.add_tokens = {"<a>", "<b>"};
    made.tokenizer.add_special_tokens = {"<c>"};
    return made;
  }
  bool tied() const { return GetParam() == "llama-tied"; }
  Arguments trained_tables() const {
    return {tied() ? R"(--adapter.train=["embed_tokens"])"
                   : R"(--adapter.train=["embed_tokens", "lm_head"])"};
  }

  // The tolerances are those of the runs over other golden models (trajectory_test.cpp).
  void expect_golden() const {
    const Json facts = json_in(golden_tokens(GetParam()) + "/golden.json");
    const Json& expected = facts.at("runs").at("free");
    const std::vector<double> losses = run_.steps("loss"), norms = run_.steps("grad_norm");
    ASSERT_EQ(losses.size(), expected.at("loss").size());
    for (size_t i = 0; i < losses.size(); ++i) {
      const double loss = expected.at("loss")[i].get<double>();
      const double norm = expected.at("grad_norm")[i].get<double>();
      EXPECT_LE(std::abs(losses[i] - loss), 3e-5 * loss) << "step " << i + 1;
      EXPECT_LE(std::abs(norms[i] - norm), 1e-4 * norm) << "step " << i + 1;
    }
    const auto state = run_.state();
    size_t compared = 0;
    for (const auto& [name, sketch] : sketches("final.")) {
      const auto mine = state.find(name + ".master");
      ASSERT_NE(mine, state.end()) << name;
      EXPECT_LE(relative_error(mine->second, sketch), 1e-4) << name;
      ++compared;
    }
    EXPECT_EQ(compared * 3, state.size());
  }
  std::map<std::string, Sketch> sketches(const std::string& kind) const {
    std::map<std::string, Sketch> found;
    for (const auto& [name, sketch] :
         read_sketches(golden_tokens(GetParam()) + "/golden_sketches.json")) {
      if (name.starts_with(kind)) found[name.substr(kind.size())] = sketch;
    }
    return found;
  }

  RunDriver run_;
};

// Goal: the tables begin as transformers' resized ones with the mean in each new row, and the rows
// in any part read alike.
TEST_P(Tokens, BeginAsTheMeanOfTheOtherRows) {
  const ModelSource source(config());
  EXPECT_EQ(source.arch().vocabulary, kRows + kAdded);
  EXPECT_EQ(source.arch().added_tokens, kAdded);
  const std::map<std::string, Sketch> tables = sketches("start.");
  EXPECT_EQ(tables.size(), tied() ? 1U : 2U);
  for (const auto& [name, sketch] : tables) {
    std::vector<float> values(static_cast<size_t>((kRows + kAdded) * source.arch().hidden));
    source.read_initial(name, 0, values);
    EXPECT_LE(relative_error(values, sketch), 1e-6) << name;
    std::vector<float> part(static_cast<size_t>(2 * source.arch().hidden + 1));
    const int64_t begin = (kRows - 1) * source.arch().hidden + 3;
    source.read_initial(name, begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + begin)) << name;
  }
}

// Goal: training follows transformers' resized model, in whole tables and in pieces of rows on two
// ranks.
TEST_P(Tokens, AreTrainedAsByTransformers) {
  ASSERT_EQ(run_.train(arguments()), 0);
  expect_golden();
  RunDriver ranks("added-tokens-ranks-" + GetParam());
  ASSERT_EQ(ranks.train_ranks(2, arguments({"--fsdp.units={ rows = 100 }"})), 0) << ranks.output();
  const std::vector<double> losses = run_.steps("loss"), cut = ranks.steps("loss");
  ASSERT_EQ(cut.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_LE(std::abs(cut[i] - losses[i]), 3e-5 * losses[i]) << "step " << i + 1;
  }
}

// Goal: the export is a model of the new size whose tokenizer has the tokens in all of its files.
TEST_P(Tokens, AreInTheExport) {
  ASSERT_EQ(run_.train(arguments({"--train.steps=2", "--checkpoint.export=end"})), 0);
  EXPECT_EQ(json_in(hf() + "/config.json").at("vocab_size"), kRows + kAdded);
  const auto state = run_.state();
  const SafetensorsFile file = SafetensorsFile::open(hf() + "/model.safetensors");
  for (const auto& [name, values] : read_tensors(hf() + "/model.safetensors")) {
    EXPECT_EQ(values, state.at(name + ".master")) << name;
  }
  EXPECT_EQ(file.find("model.embed_tokens.weight")->shape.front(), kRows + kAdded);
  const Json list = json_in(hf() + "/tokenizer.json").at("added_tokens");
  const Json table = json_in(hf() + "/tokenizer_config.json").at("added_tokens_decoder");
  const Tokenizer tokenizer = Tokenizer::load(hf());
  EXPECT_EQ(tokenizer.id_limit(), kRows + kAdded);
  ASSERT_EQ(list.size(), static_cast<size_t>(1 + kAdded));
  TokenId id = kRows;
  for (const std::string token : {"<a>", "<b>", "<c>"}) {
    const Json& entry = list.at(static_cast<size_t>(id - kRows + 1));
    EXPECT_EQ(entry.at("content"), token);
    EXPECT_EQ(entry.at("id"), id);
    EXPECT_EQ(entry.at("special"), token == "<c>");
    EXPECT_EQ(table.at(std::to_string(id)).at("content"), token);
    EXPECT_EQ(tokenizer.id_of(token), id);
    EXPECT_EQ(tokenizer.is_special(id), token == "<c>");
    ++id;
  }
  EXPECT_EQ(tokenizer.encode("x<a><c>", SpecialTokens::kNone).size(), 3U);
  const Ended checked = run_command({"check", "model", hf()});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  // The tokens of the run are those of the exported tokenizer, so nothing grows again.
  RunConfig again = config();
  again.model.path = hf();
  EXPECT_EQ(ModelSource(again).arch().added_tokens, 0);
  EXPECT_TRUE(ModelSource(again).tokens().fresh().empty());
}

// Goal: a run does not go on with other tokens, and says which it had.
TEST_P(Tokens, AreThoseOfTheRunWhenItResumes) {
  ASSERT_EQ(run_.train(arguments({"--train.steps=2"})), 0);
  const Ended refused = trained({"--train.steps=4", R"(--tokenizer.add_tokens=["<b>", "<a>"])"});
  EXPECT_EQ(refused.exit_code, 6) << refused.err;
  EXPECT_TRUE(holds(refused.err, R"(made with tokenizer.add_tokens = ["<a>", "<b>"])"))
      << refused.err;
  EXPECT_TRUE(holds(refused.err, R"(this run has tokenizer.add_tokens = ["<b>", "<a>"])"))
      << refused.err;
  const Ended same = trained({"--train.steps=4"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_TRUE(holds(same.err, "grow from 257 to 260 rows")) << same.err;
}

// Goal: a table that is larger than the tokenizer needs is used as it is.
TEST_P(Tokens, TakeTheRowsThatTheModelHas) {
  write_tokenizer(false);
  RunConfig one = config();
  one.tokenizer.add_tokens = {"<a>"};
  one.tokenizer.add_special_tokens = {};
  const ModelSource source(one);
  EXPECT_EQ(source.arch().vocabulary, kRows);
  EXPECT_EQ(source.arch().added_tokens, 0);
  ASSERT_EQ(source.tokens().fresh().size(), 1U);
  EXPECT_EQ(source.tokens().fresh().front().id, 256);
}

// Goal: rows that would never be trained are refused with what to change.
TEST_P(Tokens, AreRefusedWhereTheirRowsAreFrozen) {
  const std::string module = "model.embed_tokens";
  const Ended frozen = trained({R"(--train.freeze=["*embed_tokens*"])"});
  EXPECT_EQ(frozen.exit_code, 2) << frozen.err;
  EXPECT_TRUE(holds(frozen.err, module + " is frozen; take them out of train.freeze"))
      << frozen.err;
  const Ended adapter = trained({"--adapter.kind=lora"});
  EXPECT_EQ(adapter.exit_code, 2) << adapter.err;
  EXPECT_TRUE(holds(adapter.err, tied()
                                     ? R"(add ["model.embed_tokens"] to adapter.train)"
                                     : R"(add ["model.embed_tokens", "lm_head"] to adapter.train)"))
      << adapter.err;
}

// Goal: under adapters the tables are trained as a whole, as PEFT's modules_to_save, from the same
// first loss; the adapter and the merged model have the rows and the tokens.
TEST_P(Tokens, AreTrainedBesideAdapters) {
  const Json facts = json_in(golden_tokens(GetParam()) + "/golden.json");
  ASSERT_EQ(run_.train(arguments(
                joined({"--train.steps=2", "--adapter.kind=lora", "--checkpoint.export=end"},
                       trained_tables()))),
            0);
  const double first = facts.at("runs").at("free").at("loss")[0].get<double>();
  EXPECT_LE(std::abs(run_.steps("loss").at(0) - first), 3e-5 * first);
  const SafetensorsFile file = SafetensorsFile::open(hf() + "/adapter_model.safetensors");
  const TensorInfo* const table = file.find("base_model.model.model.embed_tokens.weight");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->shape.front(), kRows + kAdded);
  EXPECT_EQ(Tokenizer::load(hf()).id_of("<c>"), kRows + 2);
  EXPECT_FALSE(fs::exists(hf() + "/config.json"));
  const std::string merged = run_.directory() + "/merged";
  const Ended made = run_command({"export", run_.directory(), "--merged", "--to", merged});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_EQ(json_in(merged + "/config.json").at("vocab_size"), kRows + kAdded);
  EXPECT_EQ(run_command({"check", "model", merged}).exit_code, 0);
}

// Goal: a run over the same base with the same tokens goes on with the adapter and its tables; one
// without them is told what is missing.
TEST_P(Tokens, AreNeededToGoOnWithTheAdapter) {
  ASSERT_EQ(run_.train(arguments(
                joined({"--train.steps=2", "--adapter.kind=lora", "--checkpoint.export=end"},
                       trained_tables()))),
            0);
  RunDriver more("added-tokens-more-" + GetParam());
  ASSERT_EQ(more.train(arguments({"--train.steps=1", "--adapter.path=\"" + hf() + "\""})), 0);
  const SafetensorsFile file = SafetensorsFile::open(hf() + "/adapter_model.safetensors");
  const TensorInfo& table = file.tensor("base_model.model.model.embed_tokens.weight");
  EXPECT_EQ(std::ssize(more.state().at("model.embed_tokens.weight.master")), table.elements());
  RunConfig without = config();
  without.tokenizer = {};
  without.adapter.kind = AdapterSection::Kind::kLora;
  without.adapter.path = hf();
  try {
    const ModelSource source(without);
    FAIL() << "taken";
  } catch (const DataError& error) {
    EXPECT_TRUE(holds(error.what(), "or to a run that added tokens")) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Tokens, testing::Values("llama", "llama-tied"), golden_test_name);

// TokensOfTexts: the run's tokenizer alone.
RunConfig config_of_texts(const std::string& tokenizer) {
  const Json golden = json_in(golden_tokens("texts.json"));
  RunConfig config;
  config.tokenizer.path = test_data() + "/text/golden/" + tokenizer;
  config.tokenizer.add_tokens = golden.at("add_tokens").get<std::vector<std::string>>();
  config.tokenizer.add_special_tokens =
      golden.at("add_special_tokens").get<std::vector<std::string>>();
  return config;
}

// Goal: texts get the ids that transformers gives after add_tokens, with tokens that the vocabulary
// has as pieces and as special tokens among them.
TEST(TokensOfTexts, AreThoseOfTransformers) {
  const Json golden = json_in(golden_tokens("texts.json")).at("tokenizers");
  EXPECT_GE(golden.size(), 5U);
  for (const auto& [name, expected] : golden.items()) {
    const RunConfig config = config_of_texts(name);
    const Tokenizer tokenizer = load_run_tokenizer(config, "");
    EXPECT_EQ(tokenizer.vocabulary_size(), expected.at("length").get<int64_t>()) << name;
    for (const auto& [token, id] : expected.at("tokens").items()) {
      EXPECT_EQ(tokenizer.id_of(token), id.get<TokenId>()) << name << ": " << token;
    }
    for (const Json& row : expected.at("rows")) {
      const auto text = row.at("text").get<std::string>();
      const auto ids = row.at("ids").get<std::vector<TokenId>>();
      EXPECT_EQ(tokenizer.encode(text, SpecialTokens::kNone), ids) << name << ": " << text;
      EXPECT_EQ(tokenizer.decode(ids), row.at("decoded").get<std::string>())
          << name << ": " << text;
    }
    const AddedTokens tokens(config, "");
    const int64_t fresh =
        expected.at("length").get<int64_t>() - expected.at("before").get<int64_t>();
    EXPECT_EQ(std::ssize(tokens.fresh()), fresh) << name;
    EXPECT_EQ(tokens.id_limit(), tokenizer.id_limit()) << name;
    // Prepared data of the tokenizer without them is not used.
    EXPECT_NE(tokenizer.fingerprint(), Tokenizer::load(config.tokenizer.path).fingerprint())
        << name;
  }
}

// Goal: a tokenizer whose configuration adds tokens behind those of tokenizer.json is refused,
// because the new ones would push them to other ids.
TEST(TokensOfTexts, AreRefusedWhereTheyWouldMoveOthers) {
  try {
    load_run_tokenizer(config_of_texts("flags"), "");
    FAIL() << "taken";
  } catch (const DataError& error) {
    EXPECT_TRUE(holds(error.what(), "cannot take the token '<call>'")) << error.what();
    EXPECT_TRUE(holds(error.what(), "save_pretrained")) << error.what();
  }
}

// Goal: a check names such a tokenizer once, although the model and the data both need it.
TEST(TokensOfTexts, ThatAreRefusedAreNamedOnceByACheck) {
  RunConfig config = config_of_texts("flags");
  config.model.path = golden_directory("llama");
  const CheckedInputs checked = check_inputs(config);
  EXPECT_FALSE(checked.source);
  EXPECT_EQ(std::ranges::count_if(checked.problems,
                                  [](const InputProblem& problem) {
                                    return holds(problem.text, "cannot take the token '<call>'");
                                  }),
            1);
}

}  // namespace
}  // namespace longshore
