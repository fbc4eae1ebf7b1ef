// The start of a run through the command line: the weights that it begins with, and what a refused
// start leaves of an existing run. One small model is made and trained for all tests; each works on
// a copy.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/json.h"
#include "hf/safetensors_reader.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string rows_of(const std::string& word) {
  std::string rows;
  for (int i = 0; i < 24; ++i) {
    rows += R"({"text": "row )" + std::to_string(i) + " of the " + word + R"("})" + "\n";
  }
  return rows;
}

// Makes a model, data and a finished run of two steps, once for all tests.
const std::string& finished_run() {
  static const std::string directory = [] {
    std::string path = scratch_directory("start");
    fs::create_directories(path);
    EXPECT_EQ(run_command({"init-model", "--preset", "tiny-llama", path + "/model"}).exit_code, 0);
    put_text(path + "/rows.jsonl", rows_of("rows"));
    put_text(path + "/run.toml",
             "[data]\nmax_tokens = 48\n[train]\nsteps = 2\nsequences_per_step = 4\n"
             "[checkpoint]\nevery_steps = 1\n[precision]\ncompute = \"fp32\"\n"
             "[device]\nkind = \"cpu\"\nthreads = 1\n[offload]\nthreads = 1\n");
    const Ended ended =
        run_command({"train", path + "/run.toml", "--model.path=" + path + "/model",
                     "--data.train=" + path + "/rows.jsonl", "--data.cache=" + path + "/cache",
                     "--run.dir=" + path + "/run"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return path;
  }();
  return directory;
}

class StartOfARun : public testing::Test {
 protected:
  StartOfARun() : directory_(scratch_directory("start-copy")) {
    fs::copy(finished_run(), directory_, fs::copy_options::recursive);
  }
  ~StartOfARun() override { fs::remove_all(directory_); }
  static void TearDownTestSuite() { fs::remove_all(finished_run()); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  // Runs the finished run's command with more arguments.
  Arguments again(const Arguments& more = {}) const {
    return joined({"train", path("run.toml"), "--model.path=" + path("model"),
                   "--data.train=" + path("rows.jsonl"), "--data.cache=" + path("cache"),
                   "--run.dir=" + path("run")},
                  more);
  }

 private:
  std::string directory_;
};

// ---- The weights of a start ----

constexpr const char* kRandomWords = "random";

// Goal: a run file saved by a plan for a model's directory trains that directory's weights; with a
// learning rate of 0 they come back unchanged.
TEST_F(StartOfARun, FromASavedPlanHasTheWeightsOfTheDirectory) {
  const Ended search =
      run_command({"plan", path("model"), "--machine", "rtx-4090", "--search", "--save",
                   path("found"), "--data.cache=" + path("cache"), "--data.max_tokens=48"});
  ASSERT_EQ(search.exit_code, 0) << search.err;
  EXPECT_FALSE(says(bytes_of(path("found/plan-1.toml")), kRandomWords))
      << bytes_of(path("found/plan-1.toml"));
  const Ended trained = run_command(
      {"train", path("found/plan-1.toml"), "--data.train=" + path("rows.jsonl"),
       "--data.cache=" + path("cache"), "--data.overlength=truncate", "--train.epochs=0",
       "--train.steps=1", "--optimizer.lr=0", "--train.sequences_per_step=2",
       "--train.micro_batch=1", "--fsdp.recompute=unit", "--offload.activations=device",
       "--device.kind=cpu", "--run.dir=" + path("saved")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_FALSE(says(trained.err, "random weights")) << trained.err;
  EXPECT_EQ(read_tensors(path("saved/hf/model.safetensors")),
            read_tensors(path("model/model.safetensors")));
}

// Goal: the run file of a bare config.json does not start from random weights: it is refused
// because weights are missing.
TEST_F(StartOfARun, FromASavedPlanWithoutWeightsIsRefused) {
  fs::create_directories(path("bare"));
  fs::copy(path("model/config.json"), path("bare/config.json"));
  const Ended search =
      run_command({"plan", path("bare/config.json"), "--machine", "rtx-4090", "--search", "--save",
                   path("found"), "--data.cache=" + path("cache"), "--data.max_tokens=48"});
  ASSERT_EQ(search.exit_code, 0) << search.err;
  const std::string saved = path("found/plan-1.toml");
  EXPECT_FALSE(says(bytes_of(saved), "init = \"random\"")) << bytes_of(saved);
  const Ended trained =
      run_command({"train", saved, "--data.train=" + path("rows.jsonl"), "--device.kind=cpu",
                   "--data.cache=" + path("cache"), "--run.dir=" + path("saved")});
  EXPECT_EQ(trained.exit_code, 2);
  EXPECT_TRUE(says(trained.err, "no model.safetensors")) << trained.err;
  EXPECT_TRUE(says(trained.err, "fetch the weights")) << trained.err;
  const Ended plan =
      run_command({"plan", saved, "--machine", "rtx-4090", "--data.cache=" + path("cache")});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_TRUE(says(plan.err, "has no weights yet")) << plan.err;
  EXPECT_EQ(run_command({"plan", saved, "--data.cache=" + path("cache")}).exit_code, 2)
      << "here they are needed";
}

// Goal: a run file is tried with a few steps, although its warm-up is longer; the run says so.
TEST_F(StartOfARun, WithAWarmUpLongerThanTheRunShortensIt) {
  const Ended tried = run_command(
      again({"--schedule.warmup_steps=10", "--train.steps=2", "--run.dir=" + path("try")}));
  EXPECT_EQ(tried.exit_code, 0) << tried.err;
  EXPECT_TRUE(says(tried.err,
                   "schedule.warmup_steps = 10 is longer than the run; it is shortened "
                   "to the run's 2 steps"))
      << tried.err;
}

// Goal: an adapter beside the model's weights, which transformers would apply, is not passed over
// in silence.
TEST_F(StartOfARun, WithAnAdapterBesideTheModelSaysThatItIsNotUsed) {
  put_text(path("model/adapter_config.json"), R"({"peft_type": "LORA"})");
  const Ended ended = run_command(again({"--run.dir=" + path("new")}));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(says(ended.err, "an adapter lies beside the model's weights and is not used"))
      << ended.err;
  EXPECT_TRUE(fs::exists(path("new/hf/config.json")));
  EXPECT_FALSE(fs::exists(path("new/hf/adapter_config.json"))) << "its weights are not exported";
}

// Goal: what the model's files ask for and no run does is said once, by the check and by the run:
// dropout, a quantisation that plain weights do not have, layers for further tokens that are
// absent, a tensor that the index alone has. The export asks for none of what it lacks.
TEST_F(StartOfARun, SaysWhatTheModelsFilesAskForInVain) {
  Json config = Json::parse(bytes_of(path("model/config.json")));
  config["attention_dropout"] = 0.1;
  config["num_nextn_predict_layers"] = 1;
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  put_text(path("model/config.json"), config.dump());
  Json map = {{"mtp.fc.weight", "model.safetensors"}};
  const SafetensorsFile weights = SafetensorsFile::open(path("model/model.safetensors"));
  for (const TensorInfo& tensor : weights.tensors()) map[tensor.name] = "model.safetensors";
  put_text(path("model/model.safetensors.index.json"),
           Json({{"metadata", Json::object()}, {"weight_map", map}}).dump());
  const std::vector<std::string> parts = {
      "attention_dropout = 0.1 is not applied", "quantization_config says that the weights",
      "num_nextn_predict_layers = 1, but no file has", "lists tensor 'mtp.fc.weight'"};
  const Ended trained = run_command(again({"--run.dir=" + path("new")}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  Arguments check = again({"--run.dir=" + path("other")});
  check.front() = "run";
  const Ended checked = run_command(joined({"check"}, check));
  const Ended model = run_command({"check", "model", path("model")});
  for (const std::string& part : parts) {
    EXPECT_TRUE(says(trained.err, part)) << part << ": " << trained.err;
    EXPECT_TRUE(says(checked.err, part)) << part << ": " << checked.err;
    EXPECT_TRUE(says(model.out, part)) << part << ": " << model.out;
  }
  EXPECT_FALSE(says(bytes_of(path("new/hf/config.json")), "quantization_config"));
  EXPECT_FALSE(says(bytes_of(path("new/hf/model.safetensors.index.json")), "mtp"));
}

// Goal: no directory that a run exports to keeps other weights that loaders would take: the export
// goes beside them, and `export --to` refuses.
TEST_F(StartOfARun, ExportsBesideOtherWeights) {
  fs::create_directories(path("new/hf"));
  put_text(path("new/hf/consolidated.safetensors"), "other weights");
  const Ended trained = run_command(again({"--run.dir=" + path("new")}));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_TRUE(says(trained.err, "consolidated.safetensors: other weights")) << trained.err;
  EXPECT_TRUE(fs::exists(path("new/hf-2/model.safetensors")));
  EXPECT_FALSE(fs::exists(path("new/hf/config.json")));
  Arguments export_to = again({"--run.dir=" + path("new"), "--to", path("new/hf")});
  export_to.front() = "export";
  EXPECT_EQ(run_command(export_to).exit_code, 2);
}

// Goal: of data that is split, the held-out part is named once, and not as the whole files.
TEST_F(StartOfARun, WithASplitNamesTheHeldOutPart) {
  const Ended ended = run_command(again({"--run.dir=" + path("new"), "--eval.split=0.25"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(says(ended.err, "held out for evaluation: ")) << ended.err;
}

// Goal: a pass that does not fill its last step says what fills it.
TEST_F(StartOfARun, OfEpochsSaysWhatFillsTheLastStep) {
  const Arguments epoch = {"--train.steps=0", "--train.epochs=1", "--data.packing=false",
                           "--checkpoint.export=never", "--checkpoint.every_steps=0"};
  const Ended uneven = run_command(
      again(joined(epoch, {"--train.sequences_per_step=5", "--run.dir=" + path("uneven")})));
  ASSERT_EQ(uneven.exit_code, 0) << uneven.err;
  EXPECT_TRUE(says(uneven.err, "of the last step's 5 sequences 1 are from the next pass"))
      << uneven.err;
  const Ended even = run_command(
      again(joined(epoch, {"--train.sequences_per_step=6", "--run.dir=" + path("even")})));
  ASSERT_EQ(even.exit_code, 0) << even.err;
  EXPECT_FALSE(says(even.err, "next pass")) << even.err;
  // 31.2 sequences are 7 steps of 5: the second pass has them all.
  const auto passes = [&](const std::string& count) {
    return run_command(again({"--train.steps=0", "--train.epochs=" + count, "--data.packing=false",
                              "--checkpoint.export=never", "--train.sequences_per_step=5",
                              "--run.dir=" + path("part")}));
  };
  const Ended part = passes("1.3");
  ASSERT_EQ(part.exit_code, 0) << part.err;
  EXPECT_FALSE(says(part.err, "next pass")) << part.err;
  // A run that is longer than it is to be now has no last step to fill.
  const Ended over = passes("1");
  ASSERT_EQ(over.exit_code, 0) << over.err;
  EXPECT_FALSE(says(over.err, "next pass")) << over.err;
}

// Goal: a resume with another length or schedule says where the learning rate jumps, and one with
// the same rates does not.
TEST_F(StartOfARun, WithAnotherScheduleSaysWhereTheRateJumps) {
  const Ended longer = run_command(again({"--train.steps=3", "--checkpoint.export=never"}));
  ASSERT_EQ(longer.exit_code, 0) << longer.err;
  // A cosine of 2 steps had 0.55 of the peak, 2e-5, at step 2;
  // one of 3 steps has 0.325 of it at step 3.
  EXPECT_TRUE(says(longer.err,
                   "the schedule of 3 steps, no longer of 2: lr goes from 1.1e-05 at "
                   "step 2 to 6.5e-06 at step 3"))
      << longer.err;
  const Ended other = run_command(
      again({"--train.steps=4", "--schedule.name=constant", "--checkpoint.export=never"}));
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_TRUE(says(other.err, "no longer of 3: lr goes from 6.5e-06 at step 3 to 2e-05 at step 4"))
      << other.err;
  const Ended same = run_command(
      again({"--train.steps=5", "--schedule.name=constant", "--checkpoint.export=never"}));
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_FALSE(says(same.err, "lr goes")) << same.err;
}

// Goal: a checkpoint on the way is named, and the end says how long the run took, its last loss and
// where its checkpoint is. --quiet shows no steps.
TEST_F(StartOfARun, SaysWhatItSavedAndHowItEnded) {
  const Ended ended = run_command(again({"--run.dir=" + path("new")}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(says(ended.err, "checkpoint saved: " + path("new/checkpoints/step-00000001")))
      << ended.err;
  EXPECT_TRUE(says(ended.err, "trained 2 steps in ")) << ended.err;
  EXPECT_TRUE(says(ended.err, "checkpoint: " + path("new/checkpoints/step-00000002"))) << ended.err;
  EXPECT_TRUE(says(ended.err, "step 2/2")) << ended.err;
  const Ended quiet = run_command(joined({"-q"}, again({"--run.dir=" + path("quiet")})));
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_FALSE(says(quiet.err, "step 2/2")) << quiet.err;
}

// Goal: a start from random weights is announced, with the weights that the directory has.
TEST_F(StartOfARun, FromRandomWeightsIsSaid) {
  const Ended beside = run_command(again({"--model.init=random", "--run.dir=" + path("noise")}));
  ASSERT_EQ(beside.exit_code, 0) << beside.err;
  EXPECT_TRUE(says(beside.err, "random ones made with run.seed, not those in " + path("model")))
      << beside.err;
  EXPECT_TRUE(says(bytes_of(path("noise/hf/README.md")), "Trained from random weights"));
  const Ended judged = run_command(
      {"eval", path("noise/config.toml"), "--from", "model", "--data.eval=" + path("rows.jsonl")});
  EXPECT_TRUE(says(judged.err, "random ones made with run.seed")) << judged.err;

  fs::create_directories(path("bare"));
  fs::copy(path("model/config.json"), path("bare/config.json"));
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy(path("model/") + file, path("bare/") + file);
  }
  const Ended alone = run_command(
      again({"--model.path=" + path("bare"), "--model.init=random", "--run.dir=" + path("other")}));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_TRUE(says(alone.err, path("bare") + " has no weights")) << alone.err;

  const Ended trained = run_command(again({"--run.dir=" + path("anew")}));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_FALSE(says(trained.err, kRandomWords)) << trained.err;
}

// ---- The run that was there ----

struct Refusal {
  const char* name;
  int exit_code;
  Arguments more;
  std::string words;
};

// Goal: a refused start leaves every file of the finished run unchanged, byte for byte.
TEST_F(StartOfARun, ThatIsRefusedChangesNothing) {
  put_text(path("other.jsonl"), rows_of("others"));
  ASSERT_EQ(
      run_command({"init-model", "--preset", "tiny-llama", "--seed", "5", path("other-model")})
          .exit_code,
      0);
  Json config = Json::parse(bytes_of(path("other-model/config.json")));
  config["rope_theta"] = 2.0 * config.value("rope_theta", 10000.0);
  put_text(path("other-model/config.json"), config.dump());
  fs::create_directories(path("empty"));
  fs::create_directories(path("drive"));
  const std::vector<Refusal> refusals = {
      {"other data", 6, {"--data.train=" + path("other.jsonl")}, "changed since"},
      {"no data", 5, {"--data.train=" + path("nowhere.jsonl")}, "nowhere.jsonl"},
      {"another seed", 6, {"--run.seed=7"}, "changed since"},
      {"another model", 6, {"--model.path=" + path("other-model")}, "another model"},
      {"no weights", 2, {"--model.path=" + path("empty")}, "config.json"},
      {"a long name of a set",
       2,
       {"--eval.sets={ " + std::string(300, 'a') + " = \"" + path("rows.jsonl") + "\" }"},
       "the name has 300 bytes"},
      {"an unknown key", 2, {"--train.step=9"}, "train.step"},
      {"a plan that does not fit", 3, {"--offload.device_memory=64KiB"}, "device"},
      {"other trained parameters", 6, {"--train.freeze=[\"*norm*\"]"}, "step-00000002"},
      {"no checkpoint", 6, {"--checkpoint.resume=" + path("empty")}, path("empty")},
      {"a prompt that is too long",
       2,
       {"--eval.split=0.2", "--eval.prompts=[\"Once\"]", "--eval.max_new_tokens=4000"},
       "eval.prompts"},
      {"other data, anew on drives",
       6,
       {"--data.train=" + path("other.jsonl"), "--offload.optimizer=nvme",
        "--offload.nvme=" + path("drive")},
       "changed since"},
  };
  const std::map<std::string, std::string> before = record_of(path("run"));
  ASSERT_TRUE(before.contains("run.json") && before.contains("metrics.jsonl"));
  for (const Refusal& refusal : refusals) {
    const Ended ended = run_command(again(refusal.more));
    EXPECT_EQ(ended.exit_code, refusal.exit_code) << refusal.name << ": " << ended.err;
    EXPECT_TRUE(says(ended.err, refusal.words)) << refusal.name << ": " << ended.err;
    for (const auto& [name, bytes] : record_of(path("run"))) {
      const auto kept = before.find(name);
      EXPECT_TRUE(kept != before.end() && kept->second == bytes) << refusal.name << ": " << name;
    }
    EXPECT_EQ(record_of(path("run")).size(), before.size()) << refusal.name;
  }
  const Ended more = run_command(again({"--train.steps=3"}));
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_TRUE(says(bytes_of(path("run/run.json")), "\"step\": 3"));
}

// Goal: damage that only a full read of a checkpoint finds is refused too.
TEST_F(StartOfARun, WithoutAValidCheckpointChangesNothing) {
  for (const auto& entry : fs::directory_iterator(path("run/checkpoints"))) {
    const std::string file = entry.path().string() + "/state-00000-of-00001.safetensors";
    std::string bytes = bytes_of(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 0x10);
    put_text(file, bytes);
  }
  const std::map<std::string, std::string> before = record_of(path("run"));
  const Ended ended = run_command(again({"--train.steps=3"}));
  EXPECT_EQ(ended.exit_code, 6) << ended.err;
  EXPECT_TRUE(says(ended.err, "no checkpoint is valid")) << ended.err;
  EXPECT_TRUE(record_of(path("run")) == before);
}

// Goal: a refused first start leaves nothing that looks like a run.
TEST_F(StartOfARun, ThatIsRefusedAtFirstLeavesNoRun) {
  const Ended ended =
      run_command(again({"--data.train=" + path("nowhere.jsonl"), "--run.dir=" + path("first")}));
  EXPECT_EQ(ended.exit_code, 5) << ended.err;
  EXPECT_TRUE(!fs::exists(path("first")) || record_of(path("first")).empty());
}

}  // namespace
}  // namespace longshore
