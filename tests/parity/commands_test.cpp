// The commands around a run through the command line: output, files, exit codes. One small model is
// made and trained for all tests; each works on a copy of the run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"
#include "trainer/checkpoint/checkpoint_directory.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Makes a tiny llama with a byte tokenizer and trains it for three steps, once for all tests.
const std::string& trained_run() {
  static const std::string directory = [] {
    std::string path = scratch_directory("commands");
    fs::create_directories(path);
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", path + "/model"}).exit_code, 0);
    std::string rows;
    for (int i = 0; i < 24; ++i) {
      rows += R"({"text": "row )" + std::to_string(i) + R"( of the rows"})" + "\n";
    }
    write(path + "/rows.jsonl", rows);
    write(path + "/run.toml", "[model]\npath = \"" + path + "/model\"\n[run]\ndir = \"" + path +
                                  "/run\"\n[data]\ntrain = [\"" + path +
                                  "/rows.jsonl\"]\neval = [\"" + path +
                                  "/rows.jsonl\"]\nmax_tokens = 48\ncache = \"" + path +
                                  "/cache\"\n[train]\nepochs = 1\nsequences_per_step = 4\n" +
                                  "[precision]\ncompute = \"fp32\"\n[device]\nthreads = 1\n" +
                                  "[offload]\nthreads = 1\n");
    const Ended ended = run_command({"train", path + "/run.toml", "--train.steps=3"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return path;
  }();
  return directory;
}

class Commands : public testing::Test {
 protected:
  Commands() : directory_(scratch_directory("commands-copy")) {
    fs::copy(trained_run(), directory_, fs::copy_options::recursive);
  }
  ~Commands() override { fs::remove_all(directory_); }
  static void TearDownTestSuite() { fs::remove_all(trained_run()); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  // Returns the command with the run file, on this test's copy of the run.
  Arguments with(const std::string& command, const Arguments& more = {}) const {
    return joined({command, path("run.toml"), "--run.dir=" + path("run"), "--train.steps=3"}, more);
  }
  double loss(const std::string& from) const {
    const Ended ended = run_command(with("eval", {"--json", "--from", from}));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.exit_code == 0 ? Json::parse(ended.out).at("loss").get<double>() : 0.0;
  }
  std::vector<std::string> texts(const Arguments& more) const {
    const Ended ended = run_command(with("generate", joined({"--json"}, more)));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    std::vector<std::string> texts;
    std::istringstream lines(ended.out);
    for (std::string line; std::getline(lines, line);) {
      texts.push_back(Json::parse(line).at("text").get<std::string>());
    }
    return texts;
  }

  std::string directory_;
};

// ---- export ----

// The export command writes the model that the run exported.
TEST_F(Commands, ExportWritesTheModelThatTheRunExported) {
  const Ended ended = run_command(with("export", {"--to", path("out")}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.out, path("out") + ": ")) << ended.out;
  EXPECT_EQ(read(path("out/model.safetensors")), read(path("run/hf/model.safetensors")));
  EXPECT_NE(read(path("out/model.safetensors")), read(path("model/model.safetensors")));
}

// Goal: a run without a checkpoint, such as a misspelt run.dir, is not exported as the model it
// would begin with, unless that is asked for.
TEST_F(Commands, ExportNeedsACheckpointOrAWord) {
  const Ended refused = run_command(with("export", {"--to", path("out"), "--run.dir=nowhere"}));
  EXPECT_EQ(refused.exit_code, 6) << refused.err;
  EXPECT_TRUE(has(refused.err, "\"nowhere\" has no checkpoint; --from model exports"))
      << refused.err;
  EXPECT_FALSE(fs::exists(path("out")));
  EXPECT_EQ(run_command(with("export", {"--to", path("out"), "--from", "model"})).exit_code, 0);
}

// Goal: an export has a model card with its origin, and the command prints the next steps.
TEST_F(Commands, AnExportHasAModelCardAndSaysWhatComesNext) {
  const std::string card = read(path("run/hf/README.md"));
  for (const char* text : {"# run\n", "Fine-tuned from model with Longshore", "| steps | 3 |",
                           "## Recipe", "`train.sequences_per_step`", "## Data"}) {
    EXPECT_TRUE(has(card, text)) << text << " is not in " << card;
  }
  const Ended ended = run_command(with("export", {"--to", path("mine/hf")}));
  EXPECT_EQ(read(path("mine/hf/README.md")), card);
  for (const std::string& next :
       {"vllm serve " + path("mine/hf") + "\n",
        "convert_hf_to_gguf.py " + path("mine/hf") + " --outfile mine.gguf ",
        "hf upload OWNER/mine " + path("mine/hf") + "\n"}) {
    EXPECT_TRUE(has(ended.err, next)) << next << " is not in " << ended.err;
  }
}

// Goal: files that a user puts into a run's export survive the next export.
TEST_F(Commands, AReadmeInTheRunsExportSurvivesTheNextExport) {
  write(path("run/hf/README.md"), "my model card");
  write(path("run/hf/notes.txt"), "mine");
  ASSERT_EQ(run_command(with("export")).exit_code, 0);
  ASSERT_EQ(run_command(with("train", {"--train.steps=4"})).exit_code, 0);
  EXPECT_EQ(read(path("run/hf/README.md")), "my model card");
  EXPECT_EQ(read(path("run/hf/notes.txt")), "mine");
  EXPECT_FALSE(fs::exists(path("run/hf-2")));
}

// Goal: an export over foreign files is refused, and a run's own export goes beside them.
TEST_F(Commands, NoExportReplacesAnotherModel) {
  fs::copy(path("model"), path("other"));
  write(path("other/LICENSE"), "mine");
  const Ended ended = run_command(with("export", {"--to", path("other")}));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(has(ended.err, "was not written by an export")) << ended.err;
  EXPECT_EQ(read(path("other/model.safetensors")), read(path("model/model.safetensors")));
  EXPECT_EQ(read(path("other/LICENSE")), "mine");
  for (const std::string& base : {path("model"), path("other/../model"), path("link")}) {
    if (base == path("link")) fs::create_directory_symlink(path("model"), base);
    const Ended refused =
        run_command(with("export", {"--to", base, "--model.path=" + path("model")}));
    EXPECT_EQ(refused.exit_code, 2) << base;
    EXPECT_TRUE(has(refused.err, "is the model that the run began with")) << refused.err;
  }
  // A dangling link in the run's directory does not fail the run.
  fs::remove_all(path("run/hf"));
  fs::create_directory_symlink(path("other"), path("run/hf"));
  const Ended trained = run_command(with("train", {"--train.steps=4"}));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(read(path("other/model.safetensors")), read(path("model/model.safetensors")));
  EXPECT_TRUE(fs::exists(path("run/hf-2/model.safetensors")));
}

// Under a launcher one rank exports and prints.
TEST_F(Commands, UnderALauncherOneRankExportsAndPrints) {
  const std::string log = path("ranks.log");
  const Arguments command =
      joined({binary_directory() / "longshore", "launch", "--nproc", "2", "--"},
             with("export", {"--to", path("out")}));
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    ::execv(words.front(), words.data());
    ::_exit(127);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << read(log);
  const std::string text = read(log);
  const size_t first = text.find(path("out") + ": ");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find(path("out") + ": ", first + 1), std::string::npos) << text;
  EXPECT_EQ(read(path("out/model.safetensors")), read(path("run/hf/model.safetensors")));
}

// ---- eval ----

// eval takes a checkpoint, a run or a model.
TEST_F(Commands, EvalTakesCheckpointsRunsAndModels) {
  const double trained = loss("auto");
  const double untrained = loss("model");
  EXPECT_GT(std::fabs(trained - untrained), 1e-4);
  EXPECT_EQ(loss(path("run")), trained);
  const std::string newest = list_checkpoints(path("run/checkpoints")).at(0).path;
  EXPECT_EQ(loss(newest), trained);
  EXPECT_NEAR(loss(path("run/hf")), trained, 1e-6);
  EXPECT_EQ(loss(path("model")), untrained);
  const Ended none = run_command(with("eval", {"--from", path("nope")}));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(has(none.err, "--from") && has(none.err, "no such directory")) << none.err;
  EXPECT_FALSE(has(none.err, "checkpoint.resume")) << none.err;
}

// ---- generate ----

// generate takes more prompts than a micro-batch holds, with the texts of single prompts.
TEST_F(Commands, GenerateTakesMorePromptsThanAMicroBatchHolds) {
  Arguments prompts;
  std::vector<std::string> alone;
  for (const std::string prompt : {"a", "row", "the rows of", "x", "of"}) {
    prompts = joined(prompts, {"--prompt", prompt});
    alone.push_back(texts({"--max-new-tokens", "30", "--prompt", prompt}).at(0));
  }
  EXPECT_EQ(texts(joined({"--max-new-tokens", "30"}, prompts)), alone);
}

// generate samples by temperature and seed as given.
TEST_F(Commands, GenerateDrawsAsItIsTold) {
  const Arguments base = {"--prompt", "row", "--max-new-tokens", "12"};
  const auto drawn = [&](const Arguments& more) { return texts(joined(base, more)).at(0); };
  const std::string likeliest = drawn({});
  EXPECT_EQ(drawn({"--temperature", "5", "--top-k", "1"}), likeliest);
  EXPECT_EQ(drawn({"--temperature", "5", "--top-p", "1e-6"}), likeliest);
  const std::string hot = drawn({"--temperature", "5"});
  EXPECT_NE(hot, likeliest);
  EXPECT_EQ(drawn({"--temperature", "5"}), hot) << "the same seed draws the same";
  EXPECT_NE(drawn({"--temperature", "5", "--run.seed=7"}), hot);
}

// generate names the weights it uses, and the prompts that do not fit.
TEST_F(Commands, GenerateSaysWhoseWeightsAndWhatDoesNotFit) {
  const Ended ended = run_command(with("generate", {"--prompt", "a", "--max-new-tokens", "2"}));
  EXPECT_TRUE(has(ended.err, "weights of " + path("run/checkpoints")) && has(ended.err, "step 3"))
      << ended.err;
  const Ended model =
      run_command(with("generate", {"--prompt", "a", "--max-new-tokens", "2", "--from", "model"}));
  EXPECT_TRUE(has(model.err, "as it was before training")) << model.err;
  const Ended other = run_command(
      with("generate", {"--prompt", "a", "--max-new-tokens", "2", "--from", path("run/hf")}));
  EXPECT_TRUE(has(other.err, "weights of " + path("run/hf") + "\n")) << other.err;
  const Ended longer = run_command(with("generate", {"--prompt", std::string(60, 'a')}));
  EXPECT_EQ(longer.exit_code, 2);
  EXPECT_TRUE(has(longer.err, "raise data.max_tokens")) << longer.err;
}

// Goal: every number of a command line is checked against its range.
TEST_F(Commands, EveryNumberHasARange) {
  const std::vector<Arguments> wrong = {
      with("generate", {"--prompt", "a", "--max-new-tokens", "9223372036854775807"}),
      with("generate", {"--prompt", "a", "--max-new-tokens", "18446744073709551616"}),
      with("generate", {"--prompt", "a", "--max-new-tokens", "-5"}),
      with("generate", {"--prompt", "a", "--max-new-tokens", "0"}),
      with("generate", {"--prompt", "a", "--temperature", "nan"}),
      with("generate", {"--prompt", "a", "--temperature", "-3"}),
      with("generate", {"--prompt", "a", "--temperature", "inf"}),
      with("generate", {"--prompt", "a", "--top-k", "-2"}),
      with("generate", {"--prompt", "a", "--top-p", "0"}),
      with("generate", {"--prompt", "a", "--top-p", "1.5"}),
      with("plan", {"--ranks", "0"}),
      with("plan", {"--ranks-per-node", "99999999999"}),
      {"init-model", "--vocabulary", "-7", path("new")},
      {"init-model", "--seed", "-1", path("new")},
      {"tokenizer", "train", path("rows.jsonl"), "--vocabulary", "0"},
      {"bench", "optimizer", "--parameters", "-1"},
      {"bench", "optimizer", "--rounds", "0"},
      {"bench", "optimizer", "--threads", "0"},
      {"bench", "nvme", "--dir", path(""), "--seconds", "nan"},
      {"bench", "files", path("new"), "--rounds", "0"},
      {"bench", "copies", "--gpu", "-1"},
      {"ckpt", "prune", path("run.toml"), "--keep", "0"},
      {"launch", "--nproc", "0", "--", "version"},
  };
  for (const Arguments& arguments : wrong) {
    const Ended ended = run_command(arguments);
    EXPECT_EQ(ended.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_TRUE(has(ended.err, "number from ")) << ended.err;
  }
  EXPECT_FALSE(fs::exists(path("new")));
}

// ---- check run ----

// check run, prepare and check data need no length of the run.
TEST_F(Commands, CheckRunNeedsNoLengthAndReadsTheFirstRows) {
  const Ended ended = run_command({"check", "run", path("run.toml"), "--train.epochs=0"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.out, "valid: llama") && has(ended.out, "under [train]")) << ended.out;
  EXPECT_EQ(run_command({"prepare", path("run.toml"), "--train.epochs=0"}).exit_code, 0);
  EXPECT_EQ(run_command({"check", "data", path("run.toml"), "--train.epochs=0"}).exit_code, 0);
}

// Goal: check run names all problems at once.
TEST_F(Commands, CheckRunNamesEverythingThatIsMissing) {
  write(path("broken.jsonl"), "{\"text\": \"fine\"}\n{\"text\": 3}\n");
  const Ended ended = run_command(
      {"check", "run", path("run.toml"), "--model.path=" + path("no-model"),
       "--tokenizer.path=" + path("model"),
       "--data.train=[\"" + path("no-rows.jsonl") + "\", \"" + path("broken.jsonl") + "\"]",
       "--data.eval=" + path("model"), "--offload.optimizer=nvme",
       "--offload.nvme=" + path("no-drive"), "--optimizer.lr=-1"});
  EXPECT_EQ(ended.exit_code, 2);
  for (const std::string& part :
       {std::string("optimizer.lr"), path("no-model") + ": no such directory",
        path("no-rows.jsonl") + ": no such file", path("broken.jsonl") + ":2",
        path("model") + ": not a regular file", path("no-drive") + ": no such directory"}) {
    EXPECT_TRUE(has(ended.err, part)) << part << " in:\n" << ended.err;
  }
  const Ended data =
      run_command({"check", "run", path("run.toml"), "--data.train=" + path("broken.jsonl")});
  EXPECT_EQ(data.exit_code, 5) << data.err;
  write(path("model/tokenizer.json"), "{");
  const Ended tokenizer =
      run_command({"check", "run", path("run.toml"), "--model.path=" + path("model")});
  EXPECT_TRUE(has(tokenizer.err, "tokenizer.json")) << tokenizer.err;
}

// ---- plan ----

// plan prints whether the run fits, and what the machine lacks.
TEST_F(Commands, PlanSaysWhatFitsAndWhatTheMachineDoesNotHave) {
  const Ended fits = run_command(with("plan"));
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_TRUE(fits.out.starts_with("fits: ")) << fits.out;
  EXPECT_TRUE(has(fits.out, "3 steps; a checkpoint is about ")) << fits.out;
  const Ended cap = run_command(with("plan", {"--offload.host_memory=900TiB"}));
  EXPECT_EQ(cap.exit_code, 3);
  EXPECT_TRUE(has(cap.err, "offload.host_memory is 900.0 TiB")) << cap.err;
  const Ended trained =
      run_command(with("train", {"--offload.host_memory=900TiB", "--train.steps=9"}));
  EXPECT_EQ(trained.exit_code, 3) << trained.err;
  const Ended gpu = run_command(with("plan", {"--device.kind=cuda"}));
  EXPECT_EQ(gpu.exit_code, 0) << gpu.err;
  EXPECT_TRUE(has(gpu.out, "device (cuda)")) << gpu.out;
}

// plan warns that capped scores are slower on a GPU.
TEST_F(Commands, PlanSaysThatCappedScoresAreSlowerOnAGpu) {
  const std::string model = "--model.path=" + golden_directory("gemma2");
  const Ended cpu = run_command(with("plan", {model})),
              gpu = run_command(with("plan", {model, "--device.kind=cuda"}));
  EXPECT_EQ(cpu.exit_code, 0) << cpu.err;
  EXPECT_EQ(gpu.exit_code, 0) << gpu.err;
  EXPECT_FALSE(has(cpu.err, "attn_logit_softcapping")) << cpu.err;
  EXPECT_TRUE(has(gpu.err, "attn_logit_softcapping: no fused kernel")) << gpu.err;
}

// plan prints and draws the schedule.
TEST_F(Commands, PlanPrintsAndDrawsTheSchedule) {
  const Ended printed = run_command(with("plan", {"--schedule"}));
  EXPECT_EQ(printed.exit_code, 0);
  for (const char* part : {"update", "fetch", "forward", "backward", "drain", "block.1"}) {
    EXPECT_TRUE(has(printed.out, part)) << part << " in:\n" << printed.out;
  }
  const Ended drawn = run_command(with("plan", {"--schedule-svg", path("schedule.svg")}));
  EXPECT_EQ(drawn.exit_code, 0);
  EXPECT_TRUE(read(path("schedule.svg")).starts_with("<svg"));
}

// A drive that is listed twice under different names is refused.
TEST_F(Commands, TheSameDriveByAnotherNameIsRefused) {
  fs::create_directories(path("drive"));
  fs::create_directory_symlink(path("drive"), path("alias"));
  const Ended ended =
      run_command(with("plan", {"--offload.optimizer=nvme", "--offload.nvme=[\"" + path("drive") +
                                                                "\", \"" + path("alias") + "\"]"}));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(has(ended.err, "are the same directory")) << ended.err;
}

// ---- rates, other machines, search ----

// Goal: plan uses the rates that `check machine` measured, and a run's first steps correct them.
TEST_F(Commands, CheckMachineMeasuresPlanForecastsAndTrainCompares) {
  const std::string cache = "--data.cache=" + path("rates");
  const Ended unknown = run_command(with("plan", {cache}));
  EXPECT_TRUE(
      has(unknown.out, "this machine is not measured yet; `longshore check machine --rates`"))
      << unknown.out;
  EXPECT_FALSE(has(unknown.out, "tokens/s")) << unknown.out;
  EXPECT_EQ(run_command(joined({"check"}, with("machine", {cache, "--save", path("mine.toml")})))
                .exit_code,
            2)
      << "nothing is known";

  const Ended measured =
      run_command(joined({"check"}, with("machine", {cache, "--rates", "--seconds", "0.01",
                                                     "--json", "--save", path("mine.toml")})));
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  const Json rates = Json::parse(measured.out).at("rates");
  for (const char* rate : {"copy", "dram", "pin", "files_read", "files_written"}) {
    EXPECT_GT(rates.at(rate).get<double>(), 0.0) << rate;
  }
  EXPECT_EQ(rates.at("updates").size(), 4u);
  ASSERT_EQ(rates.at("groups").size(), 3u) << "of 2, 4 and 8 ranks";
  const Json& gather = rates.at("groups")[0].at("gather");
  EXPECT_GT(gather.at("core_share").get<double>(), 0.0);
  EXPECT_LE(gather.at("core_share").get<double>(), 1.0);
  EXPECT_LE(gather.at("start_core_seconds"), gather.at("start_seconds"));
  EXPECT_GE(rates.at("compute").size(), 2u);
  EXPECT_TRUE(has(measured.err, "units of the run's model")) << measured.err;
  EXPECT_TRUE(has(read(path("mine.toml")), "[[rates.update]]"));

  const Json json = Json::parse(run_command(with("plan", {cache, "--json"})).out);
  EXPECT_TRUE(json.at("time").at("known").get<bool>()) << json.at("time");
  EXPECT_GT(json.at("time").at("tokens_per_second").get<double>(), 0.0);
  const Ended screen = run_command(with("plan", {cache}));
  for (const char* part :
       {"a step takes about", "bottleneck: ", "better\n", "measured by longshore on"}) {
    EXPECT_TRUE(has(screen.out, part)) << part << " in:\n" << screen.out;
  }
  EXPECT_TRUE(has(run_command(with("plan", {cache, "--bytes"})).out, "activation checkpoints"));
  const Ended trained = run_command(with("train", {cache, "--train.steps=9"}));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_TRUE(has(trained.err, "largest error: the ")) << trained.err;
}

// Goal: errors of a run file are reported before `check machine` measures.
TEST_F(Commands, CheckMachineReadsTheRunFileBeforeItMeasures) {
  write(path("half.toml"), "[data]\ncache = \"" + path("rates") + "\"\n");
  const Ended ended = run_command({"check", "machine", "--rates", path("half.toml")});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(has(ended.err, "model.path")) << ended.err;
  EXPECT_FALSE(has(ended.err, "computation in fp32")) << ended.err;
  EXPECT_EQ(run_command({"check", "machine", "--units"}).exit_code, 2);
}

// A plan for another machine needs the config only.
TEST_F(Commands, PlansForAMachineThatIsNotHereNeedAConfigAlone) {
  fs::create_directories(path("bare"));
  fs::copy(path("model/config.json"), path("bare/config.json"));
  const Ended card = run_command(
      {"plan", path("bare/config.json"), "--machine", "rtx-4090", "--data.cache=" + path("cache")});
  EXPECT_EQ(card.exit_code, 0) << card.err;
  for (const char* part : {"RTX 4090", "device (cuda)", "estimated from data sheets", "tokens/s"}) {
    EXPECT_TRUE(has(card.out, part)) << part << " in:\n" << card.out;
  }
  const Ended cpu = run_command(
      {"plan", path("bare"), "--machine", "cpu-desktop-ddr5", "--data.cache=" + path("cache")});
  EXPECT_TRUE(has(cpu.out, "16 cores")) << cpu.out << cpu.err;
  write(path("wrong.toml"), "version = 1\n[host]\ncroes = 4\n");
  const Ended wrong = run_command({"plan", path("bare"), "--machine", path("wrong.toml")});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_TRUE(has(wrong.err, "croes: no such key; did you mean cores?")) << wrong.err;
  const Ended unknown = run_command({"plan", path("bare"), "--machine", "rtx-4909"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_TRUE(has(unknown.err, "neither a file nor a known machine; did you mean rtx-4090?"))
      << unknown.err;
}

// Goal: a run that goes on with another key shows what changed, and not the whole plan again.
TEST_F(Commands, AResumeWithAnotherKeyShowsWhatChanged) {
  const Ended ended = run_command(with("train", {"--train.steps=4"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.err, "the whole plan: " + path("run/plan.txt"))) << ended.err;
  EXPECT_TRUE(has(ended.err, "changed since the last start: train.steps: 3 -> 4")) << ended.err;
  EXPECT_FALSE(has(ended.err, "largest in memory")) << ended.err;
}

// Goal: every preset fits the machine that it names.
TEST_F(Commands, PresetsFitTheirMachines) {
  const std::string config = test_data() + "/../config/";
  int presets = 0;
  for (const auto& entry : fs::directory_iterator(config + "presets")) {
    const std::string text = read(entry.path());
    const std::string before = "# Planned for --machine ";
    const size_t at = text.find(before);
    ASSERT_NE(at, std::string::npos) << entry.path();
    const size_t begin = at + before.size();
    const std::string machine = text.substr(begin, text.find(',', begin) - begin);
    const Ended plan =
        run_command({"plan", entry.path(), "--machine", machine, "--model.path=" + path("model"),
                     "--run.dir=" + path("run"), "--data.train=" + path("rows.jsonl"),
                     "--data.cache=" + path("cache")});
    EXPECT_EQ(plan.exit_code, 0) << entry.path() << ": " << plan.err;
    EXPECT_TRUE(has(plan.out, "tokens/s")) << plan.out;
    ++presets;
  }
  EXPECT_GE(presets, 2);
}

// plan --search prints plans and saves run files that load.
TEST_F(Commands, SearchShowsPlansWhoseRunFilesCanBeUsed) {
  const std::string machine = "rtx-4090";
  const Ended search = run_command(
      with("plan", {"--search", "--machine", machine, "--save", path("found"), "--json"}));
  ASSERT_EQ(search.exit_code, 0) << search.err;
  const Json points = Json::parse(search.out);
  ASSERT_FALSE(points.empty());
  for (size_t i = 0; i < points.size(); ++i) {
    const Ended plan = run_command({"plan", path("found/plan-" + std::to_string(i + 1) + ".toml"),
                                    "--machine", machine, "--json"});
    ASSERT_EQ(plan.exit_code, 0) << plan.err;
    const Json json = Json::parse(plan.out);
    EXPECT_EQ(json.at("device").at("total_bytes"), points[i].at("device_bytes")) << points[i];
    EXPECT_NEAR(json.at("time").at("step_seconds").get<double>(),
                points[i].at("step_seconds").get<double>(), 1e-9);
  }
}

// ---- train --trace, report --terminal, bench ----

// train --trace writes a timeline.
TEST_F(Commands, TrainWritesATimeline) {
  const std::string file = path("trace.json");
  const Ended ended = run_command(with("train", {"--train.steps=4", "--trace", file}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.err, "timeline: " + file)) << ended.err;
  const Json trace = Json::parse(read(file));
  EXPECT_GT((trace.is_array() ? trace : trace.at("traceEvents")).size(), 20u);
}

// report --terminal shows steps without a loss and skips other lines, and draws each run.
TEST_F(Commands, ReportDrawsInTheTerminalAndPassesOverOtherLines) {
  fs::create_directories(path("plotted"));
  write(path("plotted/metrics.jsonl"),
        "{\"kind\": \"step\", \"loss\": 3.0}\n{\"kind\": 7}\n{\"kind\": [\"step\"]}\n[]\nnot json\n"
        "{\"kind\": \"step\", \"loss\": null}\n{\"kind\": \"step\", \"loss\": 1.0}\n");
  const Ended ended = run_command({"report", path("plotted"), "--terminal"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(ended.out, "loss: first 3.0000, last 1.0000, 3 steps")) << ended.out;
  EXPECT_TRUE(has(ended.out, "1 steps without a finite loss: 2")) << ended.out;
  EXPECT_FALSE(fs::exists(path("plotted/report.html")));
  EXPECT_EQ(run_command({"report", path("nowhere"), "--terminal"}).exit_code, 5);
  const Ended two = run_command({"report", path("plotted"), path("plotted"), "--terminal"});
  EXPECT_EQ(two.exit_code, 0) << two.err;
  const std::string title = "loss by step: " + path("plotted");
  EXPECT_TRUE(two.out.find(title) < two.out.rfind(title)) << two.out;
  EXPECT_EQ(
      run_command({"report", path("plotted"), "--terminal", "--to", path("a.html")}).exit_code, 2);
}

// bench optimizer measures the requested format, threads and size.
TEST_F(Commands, BenchOptimizerMeasuresWhatItIsAsked) {
  const Ended ended = run_command({"bench", "optimizer", "--format", "fp32", "--threads", "1",
                                   "--parameters", "65536", "--rounds", "2", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(has(Json::parse(ended.out).dump(), "fp32")) << ended.out;
}

// ---- the command line itself ----

// A mistyped command gets the nearest one as a proposal.
TEST_F(Commands, AMistypedCommandGetsTheNearestOne) {
  const Ended ended = run_command({"trian", path("run.toml")});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_TRUE(has(ended.err, "unknown command 'trian', did you mean 'train'?")) << ended.err;
  const Ended list = run_command({"ckpt", "list", "runs/x"});
  EXPECT_TRUE(has(list.err, "unknown command 'list', did you mean 'ls'?")) << list.err;
  EXPECT_TRUE(has(run_command({"config", "kyes"}).err, "did you mean 'keys'?"));
  EXPECT_TRUE(has(run_command({"chekc", "run"}).err, "did you mean 'check'?"));
  EXPECT_TRUE(has(run_command({"check", "modle"}).err, "did you mean 'model'?"));
  // A mistyped old name gets the new one.
  EXPECT_TRUE(has(run_command({"validat"}).err, "did you mean 'check run'?"));
  EXPECT_TRUE(has(run_command({"\x1b[2J"}).err, "unknown command '\\x1b[2J'"));
}

// An unknown option that is a key's name, or other trainers' name of a key, gets the key.
TEST_F(Commands, AnOptionThatIsAKeyWithoutItsSectionGetsTheKey) {
  const Ended key = run_command({"train", path("run.toml"), "--lr", "1e-4"});
  EXPECT_EQ(key.exit_code, 2);
  EXPECT_TRUE(has(key.err, "did you mean --optimizer.lr=VALUE?")) << key.err;
  EXPECT_TRUE(has(run_command({"train", path("run.toml"), "--max_seq_length=9"}).err,
                  "did you mean --data.max_tokens=VALUE?"));
  EXPECT_FALSE(has(run_command({"train", path("run.toml"), "--nothing"}).err, "did you mean"));
  EXPECT_TRUE(has(run_command({"launch", "--nproc", "2", "train", path("run.toml")}).err,
                  "put -- before the command of the ranks"));
  EXPECT_TRUE(has(run_command({"ckpt", "list"}).err, "(longshore ckpt --help lists them)"));
  EXPECT_FALSE(has(run_command({"version", "--help"}).out, "longshore generate run.toml"));
}

// A run's directory stands for the run file that the run recorded.
TEST_F(Commands, TheDirectoryOfARunIsItsRunFile) {
  const Ended by_file = run_command({"ckpt", "ls", path("run/config.toml"), "--json"});
  const Ended by_directory = run_command({"ckpt", "ls", path("run"), "--json"});
  EXPECT_EQ(by_directory.exit_code, 0) << by_directory.err;
  EXPECT_EQ(by_directory.out, by_file.out);
}

// Help and version have their usual spellings.
TEST_F(Commands, HelpAndVersionAreFoundWhereTheyAreLookedFor) {
  EXPECT_EQ(run_command({"--version"}).out, run_command({"version"}).out);
  EXPECT_TRUE(run_command({"--version"}).out.starts_with("longshore "));
  EXPECT_EQ(run_command({"help"}).out, run_command({"--help"}).out);
  EXPECT_EQ(run_command({"help", "generate"}).out, run_command({"generate", "--help"}).out);
  EXPECT_TRUE(has(run_command({"help", "generate"}).out, "64")) << "defaults are shown";
  EXPECT_TRUE(has(run_command({"help", "init-model"}).out, "tiny-gpt2")) << "presets are listed";
  EXPECT_EQ(run_command({}).exit_code, 0);
}

}  // namespace
}  // namespace longshore
