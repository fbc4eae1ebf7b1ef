// Uses of a model through the command line (eval, generate, export) and views of a run: plan
// --schedule, train --trace, report --terminal, bench optimizer and files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/errors.h"
#include "hf/model_directory.h"
#include "hf/safetensors_reader.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) lines.push_back(Json::parse(line));
  }
  return lines;
}

// `eval` of an untrained model gives transformers' loss over the same rows.
TEST(UseModel, EvalGivesTheLossOfTransformers) {
  for (const std::string golden :
       {"llama", "gpt2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "granite", "olmo3",
        "qwen3_5_text", "qwen3_5", "lfm2", "nemotron_h", "nemotron_h-moe", "qwen3_next", "gemma4",
        "gemma4-e2b"}) {
    const Json facts = golden_facts(golden);
    RunDriver run("eval-" + golden);
    fs::create_directories(run.directory());
    std::ifstream rows(golden_directory(golden) + "/train.jsonl");
    std::vector<std::string> lines;
    for (std::string line; std::getline(rows, line);) lines.push_back(line);
    const std::string chosen = run.directory() + "/eval.jsonl", empty = run.directory() + "/e.toml";
    std::ofstream file(chosen);
    for (const Json& row : facts.at("gradient_rows")) file << lines.at(row.get<size_t>()) << "\n";
    file.close();
    std::ofstream(empty).close();
    const Ended said = run_command(joined(
        joined({"eval", empty, "--json"}, RunDriver::golden_arguments(golden)),
        {"--run.dir=\"" + run.directory() + "\"", "--data.cache=\"" + run.directory() + "/cache\"",
         "--data.eval=[\"" + chosen + "\"]", "--from", "model"}));
    ASSERT_EQ(said.exit_code, 0) << said.out;
    const double wanted = facts.at("gradient_loss").get<double>();
    const Json found = Json::parse(said.out);
    EXPECT_NEAR(found.at("loss").get<double>(), wanted, 1e-5 * wanted) << golden;
    EXPECT_NEAR(found.at("perplexity").get<double>(), std::exp(wanted), 1e-4 * std::exp(wanted));
    EXPECT_EQ(found.at("step"), 0);
  }
}

// Goal: `eval` counts the trained tokens with the highest score as transformers does, for the whole
// and for each named set, with the vocabulary in pieces and with several micro-batches too; a run
// writes the same share.
TEST(UseModel, EvalGivesTheTokenAccuracyOfTransformers) {
  const std::string golden = test_data() + "/parity/golden_accuracy/";
  std::ifstream file(golden + "golden.json");
  const Json cases = Json::parse(file);
  for (const auto& [name, facts] : cases.items()) {
    const double wanted = facts.at("hits").get<double>() / facts.at("trained_tokens").get<double>();
    const RunDriver run("accuracy-" + name);
    const std::string rows = "\"" + golden + name + ".jsonl\"";
    const Arguments sets = {"--data.eval=[" + rows + "]", "--eval.sets={ same = " + rows + " }"};
    ASSERT_EQ(run.train(joined(
                  RunDriver::golden_arguments(name),
                  joined(sets, {"--train.steps=1", "--optimizer.lr=0.0", "--eval.every_steps=1"}))),
              0);
    const Json eval = run.metrics("eval").back();
    EXPECT_EQ(eval.at("token_accuracy").get<double>(), wanted) << name;
    EXPECT_EQ(eval.at("sets").at("same/token_accuracy").get<double>(), wanted) << name;
    for (const char* units : {"--fsdp.units=block", "--fsdp.units={ rows = 64 }"}) {
      const Ended said = run_command({"eval", run.directory(), "--json", units});
      ASSERT_EQ(said.exit_code, 0) << said.out;
      const Json found = Json::parse(said.out);
      EXPECT_EQ(found.at("token_accuracy").get<double>(), wanted) << name;
      EXPECT_EQ(found.at("sets").at("same").at("token_accuracy").get<double>(), wanted) << name;
    }
  }
}

// Goal: a step has the token accuracy and the entropy of transformers, with several micro-batches,
// with ranks, and with state on the host or not; a head in pieces has neither.
TEST(UseModel, AStepHasTheTokenAccuracyAndTheEntropyOfTransformers) {
  const std::string golden = test_data() + "/parity/golden_accuracy/";
  std::ifstream file(golden + "golden.json");
  const Json cases = Json::parse(file);
  for (const auto& [name, facts] : cases.items()) {
    const double accuracy =
        facts.at("hits").get<double>() / facts.at("trained_tokens").get<double>();
    const double entropy = facts.at("entropy").get<double>();
    const std::string model = name;
    const Arguments list = joined(RunDriver::golden_arguments(name),
                                  {"--data.train=[\"" + golden + name + ".jsonl\"]",
                                   "--train.steps=1", "--train.sequences_per_step=6"});
    // Entropies are computed in fp32 from logits in fp32.
    const auto expect_both = [&](const RunDriver& run, const std::string& what) {
      const Json step = run.metrics("step").back();
      EXPECT_EQ(step.at("token_accuracy").get<double>(), accuracy) << model << " " << what;
      EXPECT_NEAR(step.at("entropy").get<double>(), entropy, 1e-5 * entropy)
          << model << " " << what;
    };
    for (const char* setting : {"--train.micro_batch=6", "--train.micro_batch=1",
                                "--fsdp.recompute=none", "--offload.activations=host"}) {
      RunDriver run("step-accuracy");
      ASSERT_EQ(run.train(joined(list, {setting})), 0) << name << " " << setting;
      expect_both(run, setting);
    }
    RunDriver ranks("step-accuracy-ranks"), pieces("step-accuracy-pieces");
    ASSERT_EQ(ranks.train_ranks(2, joined(list, {"--train.micro_batch=2"})), 0) << ranks.output();
    expect_both(ranks, "ranks");
    ASSERT_EQ(pieces.train(joined(list, {"--fsdp.units={ rows = 64 }"})), 0);
    EXPECT_FALSE(pieces.metrics("step").back().contains("token_accuracy")) << name;
    EXPECT_FALSE(pieces.metrics("step").back().contains("entropy")) << name;
  }
}

// Goal: a data set of the hub's cache trains like its file.
TEST(UseModel, ADataSetIsNamedByItsHubId) {
  const std::string cache = scratch_directory("hub-cache"), commit(40, 'a');
  const std::string set = cache + "/datasets--Owner--Rows";
  fs::create_directories(set + "/refs");
  fs::create_directories(set + "/snapshots/" + commit);
  std::ofstream(set + "/refs/main") << commit;
  fs::create_symlink(golden_directory("llama") + "/train.jsonl",
                     set + "/snapshots/" + commit + "/train.jsonl");
  ::setenv("HF_HUB_CACHE", cache.c_str(), 1);
  const Arguments few = joined(RunDriver::golden_arguments("llama"), {"--train.steps=2"});
  const RunDriver file("set-file"), id("set-id"), missing("set-missing");
  ASSERT_EQ(file.train(few), 0);
  EXPECT_EQ(id.train(joined(few, {"--data.train=[\"Owner/Rows\"]"})), 0);
  EXPECT_EQ(id.steps("loss"), file.steps("loss"));
  EXPECT_EQ(missing.train(joined(few, {"--data.train=[\"Owner/None\"]"})),
            static_cast<int>(ExitCode::kData));
  ::unsetenv("HF_HUB_CACHE");
  fs::remove_all(cache);
}

// Goal: a tied head that the files store again, as some programs write them, trains as the tied
// model to the bit and is exported with both tensors equal. A head that differs is refused.
TEST(UseModel, ATiedHeadThatIsStoredTooStaysTied) {
  const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
  EditedModel model("llama-tied");
  model.values[head] = model.values.at(embedding);
  model.shapes[head] = model.shapes.at(embedding);
  model.write();
  const Arguments few = joined(RunDriver::golden_arguments("llama-tied"), {"--train.steps=3"});
  const RunDriver once("tied-once"), twice("tied-twice");
  ASSERT_EQ(once.train(few), 0);
  const Arguments of_both =
      joined(few, {"--model.path=\"" + model.directory() + "\"", "--checkpoint.export=end"});
  ASSERT_EQ(twice.train(of_both), 0);
  EXPECT_EQ(twice.state(), once.state());
  const auto exported = read_tensors(twice.directory() + "/hf/model.safetensors");
  EXPECT_EQ(exported.at(head), exported.at(embedding));
  EXPECT_NE(exported.at(head), model.values.at(head));

  model.values[head][5] += 1.0F;
  model.write();
  EXPECT_EQ(RunDriver("tied-differs").train(of_both), static_cast<int>(ExitCode::kConfig));
}

// Goal: the text tower of a multimodal model is trained, and the other towers are exported byte for
// byte, whichever version of transformers wrote the files.
TEST(UseModel, TrainsTheTextTowerAndKeepsTheOthers) {
  for (const std::string golden :
       {"gemma3", "mistral3", "qwen3_5", "qwen3_5_moe", "gemma4", "gemma4-e2b", "muse_glimmer"}) {
    const RunDriver run("towers-" + golden);
    ASSERT_EQ(run.train(joined(RunDriver::golden_arguments(golden),
                               {"--train.steps=2", "--checkpoint.export=end"})),
              0);
    const auto before = SafetensorsFile::open(golden_directory(golden) + "/model.safetensors");
    const auto after = SafetensorsFile::open(run.directory() + "/hf/model.safetensors");
    ASSERT_EQ(before.tensors().size(), after.tensors().size());
    int64_t trained = 0, kept = 0;
    for (const TensorInfo& tensor : before.tensors()) {
      const TensorInfo* same = after.find(tensor.name);
      ASSERT_NE(same, nullptr) << tensor.name;
      const bool text = tensor.name.find("language_model.") != std::string::npos ||
                        tensor.name == "lm_head.weight";
      const bool buffer = tensor.name.ends_with("layer_scalar");  // which no run trains
      EXPECT_EQ(before.hash(tensor) != after.hash(*same), text && !buffer) << tensor.name;
      ++(text ? trained : kept);
    }
    EXPECT_GT(trained, 15);
    EXPECT_GT(kept, 10);
  }
}

// Goal: the correction of a router's choice, which no run trains, and the layer that predicts a
// second token are exported byte for byte.
TEST(UseModel, ExportsCorrectionsAndTheExtraLayerAsTheyWere) {
  const RunDriver run("kept-glm4_moe");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("glm4_moe"),
                             {"--train.steps=2", "--checkpoint.export=end"})),
            0);
  const auto before = SafetensorsFile::open(golden_directory("glm4_moe") + "/model.safetensors");
  const auto after = SafetensorsFile::open(run.directory() + "/hf/model.safetensors");
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  int64_t kept = 0;
  for (const TensorInfo& tensor : before.tensors()) {
    const TensorInfo* same = after.find(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    const bool keeps = tensor.name.ends_with("e_score_correction_bias") ||
                       tensor.name.starts_with("model.layers.3.");
    EXPECT_EQ(before.hash(tensor) == after.hash(*same), keeps) << tensor.name;
    kept += keeps ? 1 : 0;
  }
  EXPECT_EQ(kept, 4);
}

// Goal: keys of layers that read those of another are in published files of Gemma 4, and are
// exported byte for byte.
TEST(UseModel, ExportsKeysThatNoLayerReadsAsTheyWere) {
  const std::string golden = golden_directory("gemma4_text-shared");
  const RunDriver run("kept-gemma4_text-shared");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("gemma4_text-shared"),
                             {"--train.steps=2", "--checkpoint.export=end"})),
            0);
  const auto before = SafetensorsFile::open(golden + "/model.safetensors");
  const auto after = SafetensorsFile::open(run.directory() + "/hf/model.safetensors");
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const std::string part : {"k_proj", "k_norm"}) {
    const std::string name = "model.layers.4.self_attn." + part + ".weight";
    ASSERT_NE(before.find(name), nullptr);
    ASSERT_NE(after.find(name), nullptr);
    EXPECT_EQ(before.hash(*before.find(name)), after.hash(*after.find(name))) << name;
  }
}

// TrainedModel: a model with a tokenizer that has memorized one text.
class TrainedModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    run_ = std::make_unique<RunDriver>("use-model");
    fs::create_directories(run_->directory());
    ASSERT_EQ(
        run_command_line({"init-model", "--preset", "tiny-llama", run_->directory() + "/model"}),
        0);
    std::ofstream(run_->directory() + "/rows.jsonl") << "{\"text\": \"abcdefgh\"}\n";
    const Arguments arguments = {"--model.path=\"" + run_->directory() + "/model\"",
                                 "--data.train=[\"" + run_->directory() + "/rows.jsonl\"]",
                                 "--data.max_tokens=256",
                                 "--train.steps=40",
                                 "--train.sequences_per_step=1",
                                 "--optimizer.lr=0.01",
                                 "--schedule.name=constant",
                                 "--precision.compute=fp32",
                                 "--device.threads=1",
                                 "--offload.threads=1"};
    ASSERT_EQ(run_->train(arguments), 0);
  }
  static void TearDownTestSuite() { run_.reset(); }

  static std::string run_file() { return run_->directory() + "/config.toml"; }

  static std::vector<Json> generate(const Arguments& more) {
    const Ended said = run_command(joined({"generate", run_file(), "--json"}, more));
    EXPECT_EQ(said.exit_code, 0) << said.out;
    return json_lines(said.out);
  }
  static std::string text_of(const Arguments& more) {
    return generate(more).at(0).at("text").get<std::string>();
  }

  static std::unique_ptr<RunDriver> run_;
};

std::unique_ptr<RunDriver> TrainedModel::run_;

// generate continues the memorized text, using the trained weights.
TEST_F(TrainedModel, GoesOnAsItLearned) {
  const std::vector<Json> said = generate({"--prompt", "abc", "--prompt", "a"});
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0].at("prompt"), "abc");
  EXPECT_EQ(said[0].at("text"), "defgh");
  EXPECT_EQ(said[0].at("new_tokens"), 5);
  EXPECT_TRUE(said[0].at("ended").get<bool>());
  EXPECT_EQ(said[1].at("text"), "bcdefgh");
  EXPECT_NE(text_of({"--prompt", "abc", "--from", "model"}), "defgh");
  EXPECT_EQ(text_of({"--prompt", "abc", "--fsdp.units={ rows = 64 }"}), "defgh");
  const Json cut = generate({"--prompt", "abc", "--max-new-tokens", "2"}).at(0);
  EXPECT_EQ(cut.at("text"), "de");
  EXPECT_FALSE(cut.at("ended").get<bool>());
}

// A prompt is the text of one argument, whatever brackets it has and wherever it stands.
TEST_F(TrainedModel, TakesPromptsAsTheyAre) {
  const Ended said = run_command({"generate", "--json", "--max-new-tokens=1", "--prompt", "[a, b]",
                                  "--prompt=[c]", "--prompt", "x", run_file()});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  std::vector<std::string> prompts;
  for (const Json& line : json_lines(said.out)) {
    prompts.push_back(line.at("prompt").get<std::string>());
  }
  EXPECT_EQ(prompts, (std::vector<std::string>{"[a, b]", "[c]", "x"}));
}

// At a high temperature each seed gives another text; top_k = 1 gives the most likely one.
TEST_F(TrainedModel, DrawsByTemperatureTopKAndSeed) {
  const auto drawn = [](const std::string& temperature, const std::string& top_k,
                        const std::string& seed) {
    return text_of({"--prompt", "abc", "--max-new-tokens", "12", "--temperature", temperature,
                    "--top-k", top_k, "--run.seed=" + seed});
  };
  EXPECT_EQ(drawn("100", "1", "5"), "defgh");
  EXPECT_EQ(drawn("0.01", "0", "5"), "defgh");
  EXPECT_EQ(drawn("100", "0", "5"), drawn("100", "0", "5"));
  std::set<std::string> texts;
  for (const char* seed : {"1", "2", "3", "4"}) texts.insert(drawn("100", "0", seed));
  EXPECT_GE(texts.size(), 3u);
  EXPECT_FALSE(texts.contains("defgh"));
}

std::map<std::string, std::vector<float>> exported(const std::string& directory) {
  return read_tensors(directory + "/model.safetensors");
}

// `export` writes the given checkpoint to the bit, and the exported model generates its text.
TEST_F(TrainedModel, IsExportedAndReadBack) {
  const std::string directory = run_->directory() + "/exported";
  ASSERT_EQ(run_command({"export", run_file(), "--to", directory}).exit_code, 0);
  const auto state = run_->state();
  const auto tensors = exported(directory), at_the_end = exported(run_->directory() + "/hf");
  EXPECT_EQ(tensors.size() * 3, state.size());
  EXPECT_EQ(tensors, at_the_end);
  for (const auto& [name, values] : tensors) EXPECT_EQ(values, state.at(name + ".master")) << name;
  const std::string first = run_->directory() + "/first";
  ASSERT_EQ(run_command({"export", run_file(), "--to", first, "--from", "model"}).exit_code, 0);
  EXPECT_EQ(exported(first), exported(run_->directory() + "/model"));
  EXPECT_EQ(text_of({"--prompt", "abc", "--from", "model", "--model.path=\"" + directory + "\""}),
            "defgh");
}

// A bf16 model is exported in bf16, and with --fp32 as its masters.
TEST(UseModel, ExportsMastersOnRequest) {
  RunDriver run("export-fp32");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("llama-bf16"), {"--train.steps=3"})), 0);
  const std::string run_file = run.directory() + "/config.toml", to = run.directory() + "/out";
  ASSERT_EQ(run_command({"export", run_file, "--fp32", "--to", to}).exit_code, 0);
  const auto state = run.state();
  size_t wide = 0;
  for (const auto& [name, values] : exported(to)) {
    EXPECT_EQ(values, state.at(name + ".master")) << name;
    ++wide;
  }
  EXPECT_EQ(wide * 3, state.size());
  EXPECT_EQ(read_json_file(to + "/config.json", JsonLimits{}).at("dtype"), "float32");
}

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Goal: experts that no step changes are exported byte for byte, in either spelling.
TEST(UseModel, ExpertsThatDoNotMoveAreExportedAsTheyCame) {
  for (const std::string& golden : expert_golden_names()) {
    RunDriver run("unmoved-" + golden);
    ASSERT_EQ(
        run.train(joined(RunDriver::golden_arguments(golden),
                         {"--train.steps=1", "--optimizer.lr=0.0", "--checkpoint.export=end"})),
        0);
    for (const char* file : {"model.safetensors", "config.json"}) {
      const std::string before = text_of_file(golden_directory(golden) + "/" + file);
      EXPECT_FALSE(before.empty());
      EXPECT_TRUE(text_of_file(run.directory() + "/hf/" + file) == before) << golden << " " << file;
    }
  }
}

// Returns the names of tensors that a run with these globs changed.
std::set<std::string> moved_with_frozen(const std::string& globs) {
  RunDriver run("frozen");
  EXPECT_EQ(run.train(joined(
                RunDriver::golden_arguments("qwen3_moe"),
                {"--train.steps=3", "--checkpoint.export=end", "--train.freeze=[" + globs + "]"})),
            0);
  std::set<std::string> moved;
  const auto before = read_tensors(golden_directory("qwen3_moe") + "/model.safetensors");
  for (const auto& [name, values] : read_tensors(run.directory() + "/hf/model.safetensors")) {
    if (values != before.at(name)) moved.insert(name);
  }
  return moved;
}

// Goal: freezing routers, or all but experts, by name freezes exactly these.
TEST(UseModel, RoutersOrAllButExpertsAreFrozen) {
  const auto all = read_tensors(golden_directory("qwen3_moe") + "/model.safetensors");
  std::set<std::string> but_routers, experts;
  for (const auto& [name, values] : all) {
    if (!name.ends_with(".mlp.gate.weight")) but_routers.insert(name);
    if (name.find(".mlp.experts.") != std::string::npos) experts.insert(name);
  }
  ASSERT_EQ(all.size(), but_routers.size() + 2) << "two sparse layers";
  EXPECT_EQ(moved_with_frozen(R"("*.mlp.gate.weight")"), but_routers);
  // The second layer is dense.
  const std::string dense = R"("*embed*", "lm_head*", "*norm*", "*self_attn*", )";
  EXPECT_EQ(moved_with_frozen(dense + R"("*.mlp.gate.*", "model.layers.1.*")"), experts);
}

// ---- Views of a run ----

// plan --schedule prints the operations of every unit.
TEST_F(TrainedModel, ItsScheduleIsPrinted) {
  const Ended said = run_command({"plan", run_file(), "--schedule"});
  ASSERT_EQ(said.exit_code, 0);
  // Each unit is fetched and computed, and its gradient is offloaded.
  for (const char* unit : {"block.0", "block.1", "head"}) {
    EXPECT_NE(said.out.find(unit), std::string::npos) << said.out;
  }
  for (const char* kind : {"fetch", "forward", "backward", "drain", "update"}) {
    EXPECT_NE(said.out.find(kind), std::string::npos) << said.out;
  }
  const std::string drawing = run_->directory() + "/schedule.svg";
  ASSERT_EQ(run_command({"plan", run_file(), "--schedule-svg", drawing}).exit_code, 0);
  std::ifstream file(drawing);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text.rfind("<svg", 0), 0u) << text.substr(0, 80);
}

// A trace has every operation of every step with valid times.
TEST(UseModel, TracesEveryOperation) {
  RunDriver run("trace");
  const std::string trace = run.directory() + "/trace.json";
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("llama"),
                             {"--train.steps=3", "--trace", trace})),
            0);
  const Json events = read_json_file(trace, JsonLimits{});
  std::map<std::string, int> forwards;
  for (const Json& event : events) {
    if (event.at("ph") != "X") continue;
    EXPECT_GE(event.at("dur").get<double>(), 0.0);
    const auto name = event.at("name").get<std::string>();
    if (name.starts_with("forward")) ++forwards[name];
  }
  // The embedding and two blocks run forward; the head runs in backward.
  EXPECT_EQ(forwards.size(), 3u) << events.dump();
  for (const auto& [name, count] : forwards) EXPECT_EQ(count, 3) << name;
}

// report --terminal draws the losses of a run.
TEST_F(TrainedModel, ItsLossIsDrawn) {
  const Ended said = run_command({"report", run_->directory(), "--terminal"});
  EXPECT_EQ(said.exit_code, 0);
  EXPECT_NE(said.out.find("40 steps"), std::string::npos) << said.out;
  const std::vector<double> losses = run_->steps("loss");
  const size_t at = said.out.find("last ");
  ASSERT_NE(at, std::string::npos) << said.out;
  const double last = std::stod(said.out.substr(at + std::string("last ").size()));
  EXPECT_NEAR(last, losses.back(), 1e-2 * losses.back()) << said.out;
}

// bench optimizer measures every state format.
TEST(UseModel, BenchOptimizerMeasuresEveryFormat) {
  const Ended said = run_command(
      {"bench", "optimizer", "--parameters", "65536", "--rounds", "1", "--threads", "1", "--json"});
  ASSERT_EQ(said.exit_code, 0);
  const std::string text = Json::parse(said.out).dump();
  for (const char* format : {"\"fp32\"", "\"split\"", "\"split-bf16\"", "\"split-int8\""}) {
    EXPECT_NE(text.find(format), std::string::npos) << text;
  }
}

// bench files reads every tensor of the model, and refuses a directory without one.
TEST(UseModel, BenchFilesReadsTheModel) {
  const std::string model = golden_directory("llama");
  const Ended ended =
      run_command({"bench", "files", model, "--rounds", "1", "--seconds", "0.05", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json found = Json::parse(ended.out);
  EXPECT_EQ(found.at("bytes").get<Bytes>(), ModelDirectory::open(model).weight_bytes());
  EXPECT_GT(found.at("gb_per_second").get<double>(), 0.0);
  EXPECT_EQ(run_command({"bench", "files", model + "/nowhere"}).exit_code, 2);
}

// check run accepts the run file and refuses mistakes.
TEST_F(TrainedModel, IsFoundValidAndAMistakeIsNot) {
  EXPECT_EQ(run_command_line({"check", "run", run_file()}), 0);
  EXPECT_EQ(run_command_line({"check", "run", run_file(), "--train.steps=-1"}), 2);
  EXPECT_EQ(run_command_line({"check", "run", run_file(), "--model.path=\"/nowhere\""}), 2);
}

}  // namespace
}  // namespace longshore
