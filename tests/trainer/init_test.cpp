// The run file that `init` writes. Goal: it loads, fits and gives a reason for each value; an
// existing file is never overwritten.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "hf/safetensors_reader.h"
#include "model/families/arch_spec.h"
#include "model/families/families.h"
#include "model/families/random_init.h"
#include "model/parameters/model_spec.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/trainer/temporary_directory.h"
#include "trainer/setup/run_file_draft.h"

namespace longshore {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

DraftFacts example() {
  return {.model = "models/some",
          .data = {"chat.jsonl"},
          .run_directory = "runs/mine",
          .drives = {},
          .parameters = 8'030'000'000,
          .max_positions = 131072,
          .longest_row = 1500,
          .data_bytes = 200 * kMiB,
          .gpu = true,
          .cpu_bf16 = true};
}

RunConfig config_of(const RunFileDraft& draft) {
  return load_run_config({}, draft.overrides());
}

// The draft as text and as arguments gives the same run.
TEST(RunFileDraft, SaysTheSameAsTextAndAsArguments) {
  RunFileDraft draft = first_draft(example());
  for (const DraftStep& step : draft_steps(example())) {
    for (const DraftKey& key : step.keys) draft.set(key.section, key.name, key.value, key.why);
  }
  const TemporaryDirectory directory;
  const std::string path = directory.file("run.toml");
  std::ofstream(path) << draft.toml();
  EXPECT_EQ(load_run_config({path}, {}), config_of(draft));
}

// Length and learning rate follow from model and data.
TEST(RunFileDraft, TakesLengthAndRateFromTheModelAndTheData) {
  const RunConfig config = config_of(first_draft(example()));
  EXPECT_EQ(config.data.max_tokens, 2048);
  EXPECT_EQ(config.data.overlength, DataSection::Overlength::kDrop);
  EXPECT_EQ(config.train.epochs, 1.0);
  EXPECT_EQ(config.train.sequences_per_step, 16);
  EXPECT_EQ(config.optimizer.lr, 1e-5);
  EXPECT_EQ(config.precision.compute, DType::kBF16);
}

// Counted rows are named in the reasons: the longest one, and how many are left out.
TEST(RunFileDraft, SaysHowManyRowsAreLeftOut) {
  DraftFacts facts = example();
  EXPECT_TRUE(has(first_draft(facts).toml(), "the longest of the first rows has 1 500 tokens"));
  facts.longest_row = 9000;
  facts.counted = {.max_tokens = 4096, .rows = 12000, .left_out = 7};
  const std::string text = first_draft(facts).toml();
  EXPECT_TRUE(has(text, "max_tokens = 4096  # the longest row has 9 000 tokens")) << text;
  EXPECT_TRUE(has(text, "leaves out the 7 of 12 000 rows that are longer")) << text;
  facts.counted.left_out = 0;
  EXPECT_TRUE(has(first_draft(facts).toml(), "a longer row is left out; now there is none"));
}

// A small data set is read three times in small steps.
TEST(RunFileDraft, ReadsSmallDataThreeTimesInSmallSteps) {
  DraftFacts facts = example();
  facts.text = true;
  facts.data_bytes = 300 * kKiB;
  facts.longest_row = 5000;
  facts.max_positions = 512;
  facts.gpu = false;
  facts.cpu_bf16 = false;
  const RunConfig config = config_of(first_draft(facts));
  EXPECT_EQ(config.data.max_tokens, 512);
  EXPECT_EQ(config.data.overlength, DataSection::Overlength::kSplit);
  EXPECT_EQ(config.train.epochs, 3.0);
  EXPECT_EQ(config.train.sequences_per_step, 4);
  EXPECT_EQ(config.precision.compute, DType::kF32);
}

std::vector<std::string> words(const DraftFacts& facts) {
  std::vector<std::string> words;
  for (const DraftStep& step : draft_steps(facts)) words.push_back(step.words);
  return words;
}

// The steps of a draft are tried from the fastest on.
TEST(RunFileDraft, TriesTheFastestFirst) {
  DraftFacts facts = example();
  EXPECT_EQ(words(facts),
            (std::vector<std::string>{"", "activation checkpoints on the host", "8-bit moments"}));
  EXPECT_EQ(config_of(first_draft(facts)).train.micro_batch, std::nullopt) << "chosen by the run";
  facts.gpu = false;
  facts.goal = DraftGoal::kExact;
  facts.drives = {"/nvme"};
  EXPECT_EQ(words(facts),
            (std::vector<std::string>{"", "activation checkpoints on the host",
                                      "optimizer state on drives", "parameters on drives too"}));
  facts.goal = DraftGoal::kSmall;
  EXPECT_EQ(config_of(first_draft(facts)).train.micro_batch, 1) << "the least memory";
}

// The keys of a run file are read with their text and comments.
TEST(RunFileKeys, AreReadAsTheyAreSpeltWithTheirReasons) {
  const std::vector<DraftKey> keys = keys_of_run_file(
      "# a head\n[train]\nsteps = 3\n\n[offload]\nnvme = [\"/a b\"]  # yours: a = b\n", "x.toml");
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(keys[0].section + "." + keys[0].name + " = " + keys[0].value, "train.steps = 3");
  EXPECT_EQ(keys[0].why, "");
  EXPECT_EQ(keys[1].value, "[\"/a b\"]");
  EXPECT_EQ(keys[1].why, "yours: a = b");
}

// Goal: a draft from a recipe has the recipe's keys, except the user's own.
TEST(RunFileKeys, OfEveryRecipeAreTheRecipes) {
  for (const NamedText& recipe : common_recipes()) {
    SCOPED_TRACE(recipe.name);
    DraftFacts facts = example();
    facts.recipe = &recipe;
    const bool drives = has(std::string(recipe.text), "nvme = [");
    if (drives) facts.drives = {"/nvme"};
    const RunConfig drafted = config_of(first_draft(facts));
    const TemporaryDirectory directory;
    const std::string path = directory.file("recipe.toml");
    std::ofstream(path) << recipe.text;
    RunConfig expected = load_run_config({path}, {}, {.complete = false});
    expected.run.dir = "runs/mine";
    expected.model.path = "models/some";
    expected.data.train = {"chat.jsonl"};
    expected.data.overlength = DataSection::Overlength::kDrop;
    expected.eval.split = 0.02;
    if (drives) expected.offload.nvme = {"/nvme"};
    EXPECT_EQ(drafted, expected);
    facts.drives = drives ? std::vector<std::string>{} : std::vector<std::string>{"/nvme"};
    EXPECT_THROW(first_draft(facts), ConfigError) << "drives that are missing, or not wanted";
  }
}

// Init: a model directory and rows.
class Init : public testing::Test {
 protected:
  Init() {
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", model_}).exit_code, 0);
    std::ofstream rows(rows_);
    for (int i = 0; i < 40; ++i) rows << R"({"text": "row )" << i << R"( of the rows"})" << "\n";
  }

  TemporaryDirectory directory_;
  std::string model_ = directory_.file("model"), rows_ = directory_.file("rows.jsonl");
  std::string file_ = directory_.file("run.toml");
};

// The values of a random model depend on tensor name and seed only, although threads fill them.
TEST_F(Init, ModelHasTheValuesOfTheSeed) {
  const SafetensorsFile file = SafetensorsFile::open(model_ + "/model.safetensors");
  const std::string config = model_ + "/config.json";
  const ArchSpec arch =
      read_arch_spec(parse_json(read_whole_file(config, kMiB), JsonLimits{}, config), config);
  for (const UnitSpec& unit : make_model_spec(arch, {}).units) {
    for (const ParamSpec& parameter : unit.parameters) {
      std::vector<float> expected(static_cast<size_t>(parameter.elements())),
          found(expected.size());
      fill_random(parameter.name, parameter.init, 42, 0, expected);
      file.read(file.tensor(parameter.name), 0, std::as_writable_bytes(std::span(found)));
      EXPECT_EQ(found, expected) << parameter.name;
    }
  }
}

// init writes a run file that plan and check run accept.
TEST_F(Init, WritesAFileThatPlansAndValidates) {
  const std::string dir = directory_.file("run");
  const Ended ended =
      run_command({"init", file_, "--model", model_, "--data", rows_, "--dir", dir});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.out, "fits with micro-batches of one sequence")) << ended.out;
  EXPECT_TRUE(has(ended.out, "longshore train " + file_)) << ended.out;
  const RunConfig config = load_run_config({file_}, {});
  EXPECT_EQ(config.model.path, model_);
  EXPECT_EQ(config.run.dir, dir);
  EXPECT_EQ(config.train.micro_batch, std::nullopt) << "auto";
  EXPECT_EQ(config.data.overlength, DataSection::Overlength::kSplit);
  EXPECT_EQ(run_command({"check", "run", file_}).exit_code, 0);
  EXPECT_EQ(run_command({"plan", file_}).exit_code, 0);
}

// Goal: a run file behind an option with several values is the run file, as in docs/adapters.md.
TEST_F(Init, TakesTheRunFileBehindTheData) {
  const Ended ended = run_command({"init", "--adapter", "--model", model_, "--data", rows_, file_});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(load_run_config({file_}, {}).data.train, std::vector<std::string>{rows_});
}

// Goal: a long row behind the first ones is not lost: all rows are counted.
TEST_F(Init, CountsAllRows) {
  const auto row = [](int words) {
    std::string answer;
    for (int i = 0; i < words; ++i) answer += "word ";
    return R"({"prompt": "say", "completion": ")" + answer + "\"}\n";
  };
  {
    std::ofstream rows(rows_);
    for (int i = 0; i < 300; ++i) rows << row(3);
    rows << row(60);
  }
  const Ended ended =
      run_command({"init", file_, "--model", model_, "--data", rows_, "--json", "--replace"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Json::parse(ended.out).at("rows"), 301);
  EXPECT_EQ(Json::parse(ended.out).at("rows_left_out"), 0);
  EXPECT_EQ(load_run_config({file_}, {}).data.max_tokens, 512) << read(file_);
  std::ofstream(rows_, std::ios::app) << row(4000) << row(5000);
  const Ended longer =
      run_command({"init", file_, "--model", model_, "--data", rows_, "--replace"});
  ASSERT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_TRUE(has(longer.out, "2 of 303 rows have more than 1024 tokens and are left out"))
      << longer.out;
}
// Goal: without a GPU a recipe is drafted for its own machine, and `plan` there agrees.
TEST_F(Init, TakesARecipe) {
  const Ended ended = run_command({"init", file_, "--recipe", "qwen3-8b_2x-rtx-4090", "--model",
                                   model_, "--data", rows_, "--machine", "2x-rtx-4090"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.out, "2 GPUs of 2 x NVIDIA GeForce RTX 4090")) << ended.out;
  EXPECT_TRUE(has(ended.out, "fits with the recipe's keys")) << ended.out;
  EXPECT_TRUE(has(ended.out, "longshore launch --nproc 2 -- train " + file_)) << ended.out;
  EXPECT_TRUE(has(read(file_), "longshore init of recipe qwen3-8b_2x-rtx-4090")) << read(file_);
  EXPECT_EQ(run_command({"plan", "--machine", "2x-rtx-4090", file_}).exit_code, 0);
  // Without --machine it is for this machine, or for the recipe's if this one has no GPU.
  const Ended json =
      run_command({"init", directory_.file("json.toml"), "--recipe", "qwen3-4b_rtx-5090", "--model",
                   model_, "--data", rows_, "--json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const Json said = Json::parse(json.out);
  EXPECT_EQ(said.at("recipe"), "qwen3-4b_rtx-5090");
  EXPECT_EQ(said.at("ranks"), 1);
  EXPECT_EQ(said.at("device"), "cuda");
}

// Goal: a key of the command line is in the file, and the file is planned with it.
TEST_F(Init, WritesGivenKeysAndPlansWithThem) {
  const Ended ended = run_command(
      {"init", file_, "--model", model_, "--data.train=" + rows_, "--adapter.kind=lora",
       "--adapter.r=4", "--train.steps=7", "--optimizer.lr=3e-4", "--schedule.warmup_ratio=0.1",
       "--offload.state_format=fp32", "--data.eval=" + rows_, "--fsdp.prefetch", "2"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.out, "more trained as adapters")) << ended.out;
  const RunConfig config = load_run_config({file_}, {});
  EXPECT_EQ(config.adapter.kind, AdapterSection::Kind::kLora);
  EXPECT_EQ(config.adapter.r, 4);
  EXPECT_EQ(config.adapter.alpha, 4.0) << "as init scales an adapter";
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.train.epochs, 0.0);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.schedule.warmup_steps, 0);
  EXPECT_EQ(config.schedule.warmup_ratio, 0.1);
  EXPECT_EQ(config.offload.state_format, StateFormat::kFp32);
  EXPECT_EQ(config.data.eval, std::vector<std::string>{rows_});
  EXPECT_EQ(config.eval.split, 0.0);
  EXPECT_EQ(config.fsdp.prefetch, 2);
  EXPECT_EQ(run_command({"check", "run", file_}).exit_code, 0);
  const Ended limited = run_command({"init", file_, "--replace", "--model", model_, "--data", rows_,
                                     "--offload.host_memory=1MiB"});
  EXPECT_EQ(limited.exit_code, 3) << limited.err;
}

// Goal: init refuses the keys that every command refuses, and two answers to one question.
TEST_F(Init, RefusesKeysThatAreWrong) {
  const auto refusal = [this](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"init", file_, "--model", model_, "--data", rows_};
    words.insert(words.end(), more.begin(), more.end());
    const Ended ended = run_command(words);
    EXPECT_EQ(ended.exit_code, 2) << ended.out;
    EXPECT_EQ(read(file_), "");
    return ended.err;
  };
  const std::string unknown = refusal({"--train.epoch=1", "--foo.bar=2", "--train.steps=-1"});
  for (const char* part : {"did you mean 'epochs'", "unknown section 'foo'", "train.steps = -1"}) {
    EXPECT_TRUE(has(unknown, part)) << unknown;
  }
  EXPECT_TRUE(has(refusal({"--model.path=other"}), "two names for one thing"));
  EXPECT_TRUE(has(refusal({"--adapter", "--adapter.kind=none"}), "--adapter asks for adapters"));
  EXPECT_TRUE(has(refusal({"--adapter.r=4"}), "adapter.r has no effect"));
}

// Goal: a recipe and a searched goal keep what the command line gives.
TEST_F(Init, KeepsGivenKeysInRecipesAndSearches) {
  const std::string machine = "rtx-4090";
  const std::vector<std::string> keys = {"--machine",
                                         machine,
                                         "--model",
                                         model_,
                                         "--data",
                                         rows_,
                                         "--replace",
                                         "--offload.state_format=split",
                                         "--fsdp.prefetch=3",
                                         "--data.max_tokens=96"};
  for (const auto& [option, value] : {std::pair<std::string, std::string>{"--goal", "smallest"},
                                      {"--goal", "longest"},
                                      {"--recipe", "qwen3-4b_rtx-5090"}}) {
    std::vector<std::string> words = {"init", file_, option, value};
    words.insert(words.end(), keys.begin(), keys.end());
    const Ended ended = run_command(words);
    ASSERT_EQ(ended.exit_code, 0) << value << ended.err;
    const RunConfig config = load_run_config({file_}, {});
    EXPECT_EQ(config.offload.state_format, StateFormat::kSplit) << value;
    EXPECT_EQ(config.fsdp.prefetch, 3) << value;
    EXPECT_EQ(config.data.max_tokens, 96) << value;
  }
}

// Goal: chat data over a base model gets a run file, by the advice of the refusal as it is printed.
TEST_F(Init, TakesAChatTemplateForABaseModel) {
  std::ofstream(rows_) << R"({"messages": [{"role": "user", "content": "a"}, )"
                       << R"({"role": "assistant", "content": "b"}]})" << "\n";
  const std::vector<std::string> words = {"init", file_, "--model", model_, "--data", rows_};
  const Ended refused = run_command(words);
  EXPECT_NE(refused.exit_code, 0);
  const std::string advice = "give a Jinja file with --data.chat_template=FILE";
  ASSERT_TRUE(has(refused.err, advice)) << refused.err;
  const std::string chat = test_data() + "/text/chat_templates/chatml.jinja";
  std::vector<std::string> advised = words;
  advised.push_back("--data.chat_template=" + chat);
  const Ended ended = run_command(advised);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(load_run_config({file_}, {}).data.chat_template, chat);
  EXPECT_EQ(run_command({"check", "run", file_}).exit_code, 0);
}

// Goal: a command that reads no run file does not take keys of one in silence.
TEST_F(Init, KeysAreRefusedWhereNoRunFileIsRead) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"check", "model", model_}, {"config", "keys"}, {"version"}}) {
    std::vector<std::string> keyed = words;
    keyed.push_back("--train.steps=3");
    const Ended ended = run_command(keyed);
    EXPECT_EQ(ended.exit_code, 2) << words.front();
    EXPECT_TRUE(has(ended.err, "--train.steps: this command reads no run file")) << ended.err;
  }
}

// An unknown recipe is refused with the list of recipes.
TEST_F(Init, NamesTheRecipesWhereItIsGivenAnother) {
  const Ended ended = run_command({"init", file_, "--recipe", "llama-9b", "--data", rows_});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(has(ended.err, " qwen3-8b_rtx-4090")) << ended.err;
  const Ended both = run_command(
      {"init", file_, "--recipe", "qwen3-8b_rtx-4090", "--goal", "small", "--data", rows_});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_EQ(read(file_), "");
}

// An existing file is not overwritten without --replace.
TEST_F(Init, LeavesAFileThatIsThere) {
  std::ofstream(file_) << "mine";
  const std::vector<std::string> command = {"init", file_, "--model", model_, "--data", rows_};
  const Ended refused = run_command(command);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(has(refused.err, "exists already")) << refused.err;
  EXPECT_EQ(read(file_), "mine");
  std::vector<std::string> replacing = command;
  replacing.push_back("--replace");
  EXPECT_EQ(run_command(replacing).exit_code, 0);
  EXPECT_NE(read(file_), "mine");
}

// All wrong arguments are named together, and nothing is written.
TEST_F(Init, NamesEverythingThatIsWrongAndWritesNothing) {
  const Ended ended = run_command(
      {"init", file_, "--model", directory_.file("none"), "--data", directory_.file("no.jsonl")});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(has(ended.err, directory_.file("none"))) << ended.err;
  EXPECT_TRUE(has(ended.err, directory_.file("no.jsonl") + ": no such file")) << ended.err;
  EXPECT_EQ(read(file_), "");
}

// Without a terminal to ask, a missing argument is named.
TEST_F(Init, SaysWhatIsMissingWhereNobodyCanBeAsked) {
  const Ended ended = run_command({"init", file_, "--model", model_});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(has(ended.err, "--data is missing")) << ended.err;
}

// Goal: on a terminal a wrong path is said at once, and asked for again.
TEST_F(Init, AsksAgainForAPathThatIsWrong) {
  int terminal = -1;
  const pid_t process = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(process, 0);
  if (process == 0) ::_exit(run_command_line({"init", file_}));
  const std::string answers = "nowhere\n" + model_ + "\nmissing.jsonl\n\x04";
  ASSERT_EQ(::write(terminal, answers.data(), answers.size()), std::ssize(answers));
  std::string said;
  char piece[512];
  for (ssize_t got = 0; (got = ::read(terminal, piece, sizeof piece)) > 0;) {
    said.append(piece, static_cast<size_t>(got));
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  ::close(terminal);
  EXPECT_EQ(WEXITSTATUS(status), 2) << "the answers end";
  EXPECT_TRUE(has(said, "nowhere: no such directory")) << said;
  EXPECT_TRUE(has(said, "missing.jsonl: no such file")) << said;
  EXPECT_TRUE(has(said, "no answer for --data")) << said;
}

// Goal: the plan that init finds for a goal agrees with `plan`, on a described machine.
TEST_F(Init, SearchesForWhatTheGoalAsks) {
  const std::string machine = "rtx-4090";
  const auto planned = [&](const std::string& goal) {
    const std::string file = directory_.file(goal + ".toml");
    const Ended ended = run_command(
        {"init", file, "--model", model_, "--data", rows_, "--goal", goal, "--machine", machine});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return Json::parse(run_command({"plan", file, "--machine", machine, "--json"}).out);
  };
  const Json balanced = planned("balanced"), fastest = planned("fastest");
  const Json longest = planned("longest"), smallest = planned("smallest"), small = planned("small");
  const auto speed = [](const Json& plan) {
    return plan.at("time").at("tokens_per_second").get<double>();
  };
  EXPECT_GE(speed(fastest), speed(balanced) * (1 - 1e-9));
  const Json points = Json::parse(run_command({"plan", directory_.file("balanced.toml"),
                                               "--machine", machine, "--search", "--json"})
                                      .out);
  EXPECT_LE(fastest.at("time").at("step_seconds").get<double>(),
            points[0].at("step_seconds").get<double>() * (1 + 1e-9))
      << "a search of the balanced plan finds nothing faster";
  EXPECT_EQ(load_run_config({directory_.file("longest.toml")}, {}).data.max_tokens, 1024)
      << "as long as the model was made for";
  const auto memory = [](const Json& plan) {
    return plan.at("device").at("total_bytes").get<Bytes>() +
           plan.at("host").at("total_bytes").get<Bytes>();
  };
  EXPECT_LT(memory(smallest), memory(small));
  EXPECT_LT(memory(smallest), memory(fastest));
  EXPECT_TRUE(has(read(directory_.file("fastest.toml")), "found by a search")) << "says why";
}

// A search that finds nothing says which memory is short and what would help, or which rates the
// machine's description lacks.
TEST_F(Init, SearchSaysWhyItFoundNothing) {
  const auto search = [this](const std::string& machine, const std::string& more) {
    return run_command({"plan", model_, "--search", "--machine", machine, more});
  };
  const Ended none = search("rtx-4090", "--offload.host_memory=1MiB");
  EXPECT_EQ(none.exit_code, 3);
  for (const char* part : {"none of the ", "host memory: the plan needs ", " too little",
                           "what would help:", "--formats also searches"}) {
    EXPECT_TRUE(has(none.err, part)) << part << " in:\n" << none.err;
  }
  const std::string bare = directory_.file("bare.toml");
  std::ofstream(bare) << "version = 1\n[host]\nmemory = \"64GiB\"\n[rates]\ndram = 50.0\n";
  const Ended rates = search(bare, "--data.max_tokens=64");
  EXPECT_EQ(rates.exit_code, 3);
  EXPECT_TRUE(has(rates.err, "plans fit, but have no time without these rates: ")) << rates.err;
}

// A run file without a length can be planned.
TEST_F(Init, PlansBeforeTheLengthIsKnown) {
  std::ofstream(file_) << "[run]\ndir = \"" << directory_.file("run") << "\"\n[model]\npath = \""
                       << model_ << "\"\n[data]\ntrain = [\"" << rows_ << "\"]\nmax_tokens = 64\n";
  const Ended planned = run_command({"plan", file_});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_TRUE(has(planned.out, "to train, add steps = 100 or epochs = 1")) << planned.out;
}

}  // namespace
}  // namespace longshore
