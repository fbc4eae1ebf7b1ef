// Runs with adapters: the same bits in every configuration, what is written, and how it resumes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"
#include "trainer/commands/command_line.h"

namespace longshore {
namespace {

Arguments adapter_arguments(const std::string& golden) {
  return joined(RunDriver::golden_arguments(golden),
                {"--adapter.kind=lora", "--adapter.r=4", "--adapter.alpha=8", "--train.steps=10",
                 "--train.max_grad_norm=0.9", "--train.sequences_per_step=4"});
}

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> state;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const RunDriver& run) {
  return {run.steps("loss"), run.steps("grad_norm"), run.state()};
}

Outcome train(const std::string& golden, const Arguments& more) {
  RunDriver run("adapter-bits");
  EXPECT_EQ(run.train(joined(adapter_arguments(golden), more)), 0) << golden;
  return outcome_of(run);
}

// A test runs each option by itself or with few others, or all options in few runs. The latter
// compare the same things, but a failure does not name the option.
enum class Runs : uint8_t { kEachOption, kOptionsTogether };

std::vector<Arguments> variants_of(Runs runs, const std::string& drive) {
  if (runs == Runs::kOptionsTogether) {
    return {{"--fsdp.recompute=none", "--fsdp.prefetch=3", "--offload.state_format=fp32"},
            {"--fsdp.units=half", "--fsdp.prefetch=0", "--offload.activations=host",
             "--offload.threads=2", "--fsdp.recompute=except-mlp"},
            {"--fsdp.units={ min_parameters = 3000 }", "--optimizer.overlap=backward",
             "--offload.optimizer=nvme", "--offload.parameters=nvme", drive},
            {"--offload.parameters=files", "--fsdp.units=half", "--optimizer.overlap=backward"},
            {"--offload.parameters=files", "--fsdp.prefetch=3", "--optimizer.overlap=none"}};
  }
  return {{"--fsdp.recompute=none", "--fsdp.prefetch=3"},
          {"--fsdp.units=half", "--offload.activations=host", "--offload.threads=2",
           "--fsdp.recompute=except-mlp"},
          {"--fsdp.units=half", "--fsdp.prefetch=0", "--offload.state_format=fp32"},
          {"--fsdp.units={ min_parameters = 3000 }", "--optimizer.overlap=backward"},
          {"--offload.optimizer=nvme", "--offload.parameters=nvme", drive},
          {"--offload.parameters=files"},
          {"--offload.parameters=files", "--fsdp.units=half", "--optimizer.overlap=backward"},
          {"--offload.parameters=files", "--fsdp.prefetch=3", "--optimizer.overlap=none"}};
}

// Tiers, units, recompute, prefetch and threads change no bit of a run.
void expect_same_bits(const std::string& golden, const std::string& compute,
                      const Arguments& adapter, Runs runs = Runs::kOptionsTogether) {
  // Norms are summed by unit, so nothing is clipped where units differ.
  const Arguments run =
      joined(adapter, {"--precision.compute=" + compute, "--train.max_grad_norm=0"});
  const std::string drive = "--offload.nvme=[\"" + scratch_directory("adapter-" + compute) + "\"]";
  const Outcome reference = train(golden, run);
  ASSERT_EQ(reference.losses.size(), 10u);
  EXPECT_NE(reference.losses.front(), reference.losses.back());
  for (const Arguments& variant : variants_of(runs, drive)) {
    const Outcome outcome = train(golden, joined(run, variant));
    EXPECT_EQ(outcome.losses, reference.losses) << golden << compute << " " << variant.front();
    EXPECT_TRUE(outcome.state == reference.state) << golden << compute << " " << variant.front();
  }
}

class AdapterBits : public testing::TestWithParam<std::string> {};

// In fp32 and, for two families, bf16. Of one family each option runs alone.
TEST_P(AdapterBits, AreTheSameInEveryConfiguration) {
  const std::string golden = GetParam();
  const Runs runs = golden == "llama" ? Runs::kEachOption : Runs::kOptionsTogether;
  for (const std::string compute : {"fp32", "bf16"}) {
    if (compute == "bf16" && golden != "llama" && golden != "qwen3_moe") continue;
    expect_same_bits(golden, compute, {}, runs);
  }
}

const auto kFamilies = testing::Values("llama", "llama-tied", "gpt2", "phi3", "qwen3_moe");
INSTANTIATE_TEST_SUITE_P(Families, AdapterBits, kFamilies, golden_test_name);

class LongAdapterBits : public testing::TestWithParam<std::string> {};

// Each option alone, in both computations, gives the same bits in every family.
TEST_P(LongAdapterBits, AreTheSameForEachOption) {
  for (const std::string compute : {"fp32", "bf16"}) {
    expect_same_bits(GetParam(), compute, {}, Runs::kEachOption);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LongAdapterBits, kFamilies, golden_test_name);

void expect_dora_agrees(Runs runs) {
  for (const std::string compute : {"fp32", "bf16"}) {
    expect_same_bits("llama", compute, {"--adapter.kind=dora"}, runs);
  }
}

TEST(AdapterRuns, OfDoraHaveTheSameBitsInEveryConfiguration) {
  expect_dora_agrees(Runs::kOptionsTogether);
}

const std::string kTables = "--adapter.targets=[\"embed_tokens\", \"lm_head\", \"v_proj\"]";

// Adapters on embedding and head change backward of both; the head's drops inputs by position.
void expect_tables_agree(Runs runs) {
  const Arguments lora = {kTables}, dora = joined(lora, {"--adapter.kind=dora"});
  const Arguments dropout = {"--adapter.dropout=0.25"};
  expect_same_bits("llama", "fp32", joined(lora, dropout), runs);
  expect_same_bits("llama", "bf16", lora, runs);
  expect_same_bits("llama", "fp32", joined(dora, dropout), runs);
  expect_same_bits("llama", "bf16", dora, runs);
}

TEST(AdapterRuns, OfEmbeddingAndHeadHaveTheSameBitsInEveryConfiguration) {
  expect_tables_agree(Runs::kOptionsTogether);
}

// An embedding that is also the head is trained in full beside the adapters.
void expect_tied_embedding_agrees(Runs runs) {
  expect_same_bits("llama-tied", "fp32", {"--adapter.train=[\"embed_tokens\"]"}, runs);
}

TEST(AdapterRuns, OfATiedEmbeddingHaveTheSameBitsInEveryConfiguration) {
  expect_tied_embedding_agrees(Runs::kOptionsTogether);
}

// The experts of these families have adapters where they are named.
void expect_named_experts_agree(Runs runs) {
  const std::string targets = "--adapter.targets=[\"attention\", \"mlp\", ";
  expect_same_bits("gpt_oss", "fp32", {targets + "\"router\"]"}, runs);
  expect_same_bits("qwen2_moe", "fp32", {targets + "\"gate\", \"shared_expert_gate\"]"}, runs);
}

TEST(AdapterRuns, OfNamedExpertsHaveTheSameBitsInEveryConfiguration) {
  expect_named_experts_agree(Runs::kOptionsTogether);
}

// With dropout too: recompute, units, tiers and threads draw the same masks.
void expect_dropout_agrees(Runs runs) {
  const Arguments lora = {"--adapter.dropout=0.25"}, dora = joined(lora, {"--adapter.kind=dora"});
  expect_same_bits("llama", "fp32", lora, runs);
  expect_same_bits("llama", "bf16", dora, runs);
  expect_same_bits("phi3", "fp32", dora, runs);
  expect_same_bits("gpt2", "fp32", lora, runs);
  EXPECT_NE(train("llama", lora).losses, train("llama", {}).losses);
}

TEST(AdapterRuns, WithDropoutHaveTheSameBitsInEveryConfiguration) {
  expect_dropout_agrees(Runs::kOptionsTogether);
}

// Some layers, without one matrix, with ranks and alphas of single matrices and with the biases of
// adapted modules.
const Arguments kOtherShapes = {
    "--adapter.targets=[\"attention\"]",
    "--adapter.exclude=[\"k_proj\"]",
    "--adapter.layers=[0, 2]",
    "--adapter.bias=lora_only",
    "--adapter.rank_pattern={ \"layers.2.self_attn.q_proj\" = 2, \".*o_proj\" = 8 }",
    "--adapter.alpha_pattern={ \"o_proj\" = 3 }"};

void expect_other_shapes_agree(Runs runs) {
  expect_same_bits("qwen2", "fp32", kOtherShapes, runs);
  expect_same_bits("qwen2", "bf16", kOtherShapes, runs);
  expect_same_bits("gpt2", "fp32", {"--adapter.bias=all"}, runs);
}

TEST(AdapterRuns, OfOtherShapesHaveTheSameBitsInEveryConfiguration) {
  expect_other_shapes_agree(Runs::kOptionsTogether);
}

// Goal: the export of a new adapter says in PEFT's words what it is, whatever the run file says,
// and adapter.path alone goes on with it.
TEST(AdapterRuns, OfOtherShapesAreExportedInTheWordsOfPeft) {
  RunDriver run("adapter-shapes");
  const Arguments keys = {"--train.steps=2", "--checkpoint.export=end"};
  ASSERT_EQ(run.train_ranks(1, joined(joined(adapter_arguments("qwen2"), kOtherShapes), keys)), 0);
  // vLLM would scale every matrix by one rank and alpha.
  EXPECT_EQ(run.output().find("--enable-lora"), std::string::npos);
  EXPECT_NE(run.output().find("--merged"), std::string::npos);
  const std::string hf = run.directory() + "/hf";
  const Json config = read_json_file(hf + "/adapter_config.json", JsonLimits{});
  EXPECT_EQ(config.at("rank_pattern").dump(),
            R"({"model.layers.2.self_attn.q_proj":2,"o_proj":8})");
  EXPECT_EQ(config.at("alpha_pattern").dump(), R"({"o_proj":3})");
  EXPECT_EQ(config.at("bias"), "lora_only");
  EXPECT_EQ(config.at("target_modules").size(), 6u);
  const auto tensors = read_tensors(hf + "/adapter_model.safetensors");
  // A and B of six modules, and the biases of q and v; o has none.
  EXPECT_EQ(tensors.size(), 16u);
  const std::string attention = "base_model.model.model.layers.2.self_attn.";
  EXPECT_TRUE(tensors.contains(attention + "v_proj.base_layer.bias"));
  EXPECT_EQ(tensors.at(attention + "q_proj.lora_B.weight").size(),
            2 * tensors.at(attention + "q_proj.base_layer.bias").size());

  RunDriver next("adapter-shapes-next");
  ASSERT_EQ(next.train(joined(RunDriver::golden_arguments("qwen2"),
                              {"--adapter.path=\"" + hf + "\"", "--train.steps=1"})),
            0);
  const auto before = run.state(), after = next.state();
  EXPECT_TRUE(std::ranges::equal(
      before, after, {}, [](const auto& one) { return one.first; },
      [](const auto& one) { return one.first; }));
}

// A run with such an adapter goes on with the same bits, and not with another alpha of one matrix.
TEST(AdapterRuns, OfOtherShapesResumeWithTheSameBits) {
  const Outcome unbroken = train("qwen2", kOtherShapes);
  RunDriver run("adapter-shapes-resume");
  const Arguments all = joined(adapter_arguments("qwen2"), kOtherShapes);
  ASSERT_EQ(run.train(joined(all, {"--train.steps=5"})), 0);
  EXPECT_NE(run.train(joined(all, {"--adapter.alpha_pattern={ \"o_proj\" = 4 }"})), 0);
  ASSERT_EQ(run.train(all), 0);
  EXPECT_TRUE(run.state() == unbroken.state);
}

// Each option alone gives the same bits with every kind of adapter.
TEST(LongAdapterRuns, HaveTheSameBitsForEachOption) {
  expect_dora_agrees(Runs::kEachOption);
  expect_tables_agree(Runs::kEachOption);
  expect_tied_embedding_agrees(Runs::kEachOption);
  expect_named_experts_agree(Runs::kEachOption);
  expect_dropout_agrees(Runs::kEachOption);
  expect_other_shapes_agree(Runs::kEachOption);
}

// Returns the norms of the rows of a matrix; of its columns if `columns`.
std::vector<double> norms_of(const std::vector<float>& matrix, size_t outputs, bool columns) {
  std::vector<double> squares(outputs);
  const size_t inputs = matrix.size() / outputs;
  for (size_t i = 0; i < matrix.size(); ++i) {
    squares[columns ? i % outputs : i / inputs] += double{matrix[i]} * matrix[i];
  }
  for (double& value : squares) value = std::sqrt(value);
  return squares;
}

// New magnitudes are the norms of the model's weights, so the model begins as itself; on two ranks
// too, of which each makes its own part. Outputs of an embedding are its columns.
void expect_begins_as_the_model(const std::string& golden, const Arguments& more, size_t count) {
  const auto weights = read_tensors(golden_directory(golden) + "/model.safetensors");
  const Arguments still = joined({"--train.steps=1", "--optimizer.lr=0"}, more);
  const Outcome lora = train(golden, still);
  const Arguments dora = joined(still, {"--adapter.kind=dora"});
  RunDriver two("adapter-dora-ranks");
  ASSERT_EQ(two.train_ranks(2, joined(adapter_arguments(golden), dora)), 0) << two.output();
  for (const Outcome& outcome : {train(golden, dora), outcome_of(two)}) {
    EXPECT_NEAR(outcome.losses.at(0), lora.losses.at(0), 1e-5 * lora.losses.at(0));
    size_t magnitudes = 0;
    for (const auto& [name, values] : outcome.state) {
      const std::string end = ".lora_magnitude_vector.master";
      if (!name.ends_with(end)) continue;
      const std::string weight = name.substr(0, name.size() - end.size()) + ".weight";
      const bool columns = golden == "gpt2" || weight.find("embed_tokens") != weight.npos;
      const std::vector<double> norms = norms_of(weights.at(weight), values.size(), columns);
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(values[i], norms[i], 1e-6 * norms[i]) << name << " " << i;
      }
      ++magnitudes;
    }
    EXPECT_EQ(magnitudes, count);
  }
}

TEST(AdapterRuns, OfDoraBeginAsTheModel) {
  expect_begins_as_the_model("llama", {}, 14);
  expect_begins_as_the_model("gpt2", {}, 8);
  expect_begins_as_the_model("llama", {kTables}, 4);
}

// Two ranks differ from one by the order of sums alone.
TEST(AdapterRuns, OnTwoRanksAreCloseToOne) {
  for (const Arguments& own : {Arguments{"--adapter.dropout=0"},
                               {"--adapter.dropout=0.25"},
                               {"--adapter.dropout=0.25", "--adapter.kind=dora", kTables}}) {
    const Outcome one = train("llama", own);
    RunDriver two("adapter-ranks");
    ASSERT_EQ(two.train_ranks(2, joined(adapter_arguments("llama"), own)), 0) << two.output();
    const std::vector<double> losses = two.steps("loss");
    ASSERT_EQ(losses.size(), one.losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_LE(std::abs(losses[i] - one.losses[i]), 1e-5 * one.losses[i])
          << own.back() << " " << i;
    }
  }
}

// A run that ends after five steps and goes on has the bits of one that did not, masks of dropout
// included, also on drives.
TEST(AdapterRuns, ResumeWithTheSameBits) {
  const Arguments dropout = {"--adapter.dropout=0.25"};
  const Outcome unbroken = train("llama", dropout);
  for (const bool drives : {false, true}) {
    const Arguments tier =
        drives ? Arguments{"--offload.optimizer=nvme",
                           "--offload.nvme=[\"" + scratch_directory("adapter-resume") + "\"]"}
               : Arguments{};
    RunDriver run("adapter-resume");
    const Arguments all = joined(joined(adapter_arguments("llama"), dropout), tier);
    ASSERT_EQ(run.train(joined(all, {"--train.steps=5"})), 0);
    ASSERT_EQ(run.train(all), 0);
    EXPECT_TRUE(run.state() == unbroken.state);
    EXPECT_EQ(run.steps("loss").back(), unbroken.losses.back());
  }
}

// A checkpoint and an update hold the adapters alone.
TEST(AdapterRuns, SaveTheAdaptersAlone) {
  RunDriver run("adapter-saved");
  ASSERT_EQ(run.train(adapter_arguments("llama")), 0);
  for (const auto& [name, values] : run.state()) {
    EXPECT_TRUE(name.find(".lora_") != std::string::npos) << name;
  }
  const Json plan = run.plan(1);
  // Two blocks, seven matrices each: rank 4 times the sum of both dimensions.
  int64_t expected = 0;
  for (const int64_t sum : {16 + 48, 16 + 24, 16 + 24, 48 + 16, 16 + 40, 16 + 40, 40 + 16}) {
    expected += 2 * 4 * sum;
  }
  EXPECT_EQ(plan.at("trainable"), expected);
}

// Another scaling or kind would turn the saved adapters into another model, so it does not resume
// them.
TEST(AdapterRuns, RefuseAnotherScalingOrKind) {
  RunDriver run("adapter-scaling");
  ASSERT_EQ(run.train(joined(adapter_arguments("llama"), {"--train.steps=2"})), 0);
  EXPECT_NE(run.train(joined(adapter_arguments("llama"), {"--adapter.alpha=16"})), 0);
  EXPECT_NE(run.train(joined(adapter_arguments("llama"), {"--adapter.r=8", "--adapter.alpha=16"})),
            0);
  EXPECT_NE(run.train(joined(adapter_arguments("llama"), {"--adapter.kind=dora"})), 0);
}

// A learning rate of full fine-tuning is noted by the check and by no adapter-less run.
TEST(AdapterRuns, NoteALearningRateOfFullFineTuning) {
  const std::string directory = scratch_directory("adapter-rate");
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/empty.toml").close();
  const Arguments check =
      joined({"check", "run", directory + "/empty.toml"},
             joined(RunDriver::golden_arguments("llama"),
                    {"--optimizer.lr=1e-5", "--run.dir=\"" + directory + "/run\""}));
  EXPECT_EQ(run_command(check).err.find("hardly moves an adapter"), std::string::npos);
  EXPECT_NE(run_command(joined(check, {"--adapter.kind=lora"})).err.find("hardly moves an adapter"),
            std::string::npos);
}

// An adapter of the other kind would be trained otherwise than the run file says.
TEST(AdapterRuns, RefuseAnAdapterOfTheOtherKind) {
  const std::string directory = scratch_directory("adapter-kind");
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/empty.toml").close();
  for (const auto& [golden, kind] :
       {std::pair<std::string, std::string>{"llama", "dora"}, {"llama-dora", "lora"}}) {
    const Ended ended = run_command(
        joined({"check", "run", directory + "/empty.toml"},
               joined(RunDriver::golden_arguments("llama"),
                      {"--run.dir=\"" + directory + "/run\"", "--adapter.kind=" + kind,
                       "--adapter.path=\"" + adapter_golden_directory(golden) + "/adapter\""})));
    EXPECT_NE(ended.exit_code, 0);
    EXPECT_NE(ended.err.find("use_dora of its adapter_config.json"), std::string::npos)
        << ended.err;
  }
}

// A matrix that is trained in full has no adapter, because the merged model would lack what
// changed.
TEST(AdapterRuns, TrainNoMatrixTwice) {
  const std::string directory = scratch_directory("adapter-twice");
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/run.toml") << "[run]\ndir = \"" << directory << "/run\"\n";
  const Arguments check =
      joined(joined({"check", "run", directory + "/run.toml"}, adapter_arguments("llama")),
             {"--adapter.train=[\"q_proj\"]"});
  const Ended twice = run_command(check);
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_NE(twice.err.find("q_proj has an adapter too"), std::string::npos) << twice.err;
  const Ended once = run_command(joined(check, {"--adapter.exclude=[\"q_proj\"]"}));
  EXPECT_EQ(once.exit_code, 0) << once.err;
}

// Patterns for names that transformers no longer has would be without effect.
TEST(AdapterRuns, RefusePatternsOfOlderNames) {
  const std::string directory = scratch_directory("adapter-older-pattern");
  const std::string older = test_data() + "/parity/golden_adapter_older/older";
  std::filesystem::create_directories(directory);
  std::filesystem::copy(older, directory + "/adapter", std::filesystem::copy_options::recursive);
  Json config = read_json_file(older + "/adapter_config.json", JsonLimits{});
  config["alpha_pattern"] = {{"w1", 64}};
  std::ofstream(directory + "/adapter/adapter_config.json") << config.dump();
  const Ended ended = run_command(joined(
      joined({"check", "run"}, RunDriver::golden_arguments("mixtral")),
      {"--run.dir=\"" + directory + "/run\"", "--adapter.path=\"" + directory + "/adapter\""}));
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_NE(ended.err.find("alpha_pattern matches "), std::string::npos) << ended.err;
}

// Goal: a run file with the keys of a new adapter goes on with another adapter that the command
// line names. Equal values are no mistake; other values of the file are replaced, in one line;
// other values of the command line are a contradiction.
TEST(AdapterRuns, KeysBesideAnAdaptersPathAgreeOrAreReplacedOrRefused) {
  const std::string directory = scratch_directory("adapter-beside");
  std::filesystem::create_directories(directory);
  const std::string path = "--adapter.path=\"" + adapter_golden_directory("llama") + "/adapter\"";
  const auto checked = [&](const std::string& file, const Arguments& more) {
    std::ofstream(directory + "/run.toml") << "[adapter]\nkind = \"lora\"\n" << file;
    return run_command(joined({"check", "run", directory + "/run.toml"},
                              joined(joined(RunDriver::golden_arguments("llama"), more),
                                     {"--run.dir=\"" + directory + "/run\""})));
  };
  const std::string equal = "r = 4\nalpha = 8\ntargets = [\"all-linear\"]\n";
  for (const Ended& ended : {checked(equal, {path}), checked(equal + path.substr(10) + "\n", {}),
                             checked("", {path, "--adapter.r=4", "--adapter.alpha=8"})}) {
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.err.find("adapter."), std::string::npos) << ended.err;
  }
  const Ended replaced = checked("r = 16\nalpha = 8\n", {path});
  EXPECT_EQ(replaced.exit_code, 0) << replaced.err;
  EXPECT_NE(replaced.err.find("adapter.path: the adapter's r = 4 ("), std::string::npos)
      << replaced.err;
  EXPECT_NE(replaced.err.find("replace adapter.r = 16 (" + directory + "/run.toml:3:5)"),
            std::string::npos)
      << replaced.err;
  for (const Ended& ended :
       {checked(equal, {path, "--adapter.r=16"}), checked("", {path, "--adapter.r=16"}),
        checked("r = 16\n" + path.substr(10) + "\n", {})}) {
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_NE(ended.err.find("adapter.r = 16, but adapter.path names an adapter with 4"),
              std::string::npos)
        << ended.err;
  }
}

void expect_exports_of(const std::string& kind) {
  const Arguments own = {"--adapter.kind=" + kind};
  const std::string rows = golden_directory("llama") + "/train.jsonl";
  RunDriver run("adapter-export");
  ASSERT_EQ(run.train(joined(joined(adapter_arguments("llama"), own), {"--checkpoint.export=end"})),
            0);
  const std::string adapter = run.directory() + "/hf";
  EXPECT_TRUE(std::filesystem::exists(adapter + "/adapter_config.json"));
  EXPECT_TRUE(std::filesystem::exists(adapter + "/adapter_model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(adapter + "/config.json"));
  const std::map<std::string, std::vector<float>> state = run.state();
  for (const auto& [name, values] : read_tensors(adapter + "/adapter_model.safetensors")) {
    const std::string prefix = "base_model.model.";
    ASSERT_TRUE(name.starts_with(prefix)) << name;
    EXPECT_EQ(values, state.at(name.substr(prefix.size()) + ".master")) << name;
  }
  const std::string config = run.directory() + "/config.toml";
  const Arguments evaluated = {config, "--data.eval=[\"" + rows + "\"]"};
  const double loss = eval_loss(evaluated);
  EXPECT_NE(loss, eval_loss(joined(evaluated, {"--from", "model"})));

  RunDriver next("adapter-next");
  ASSERT_EQ(next.train(joined(RunDriver::golden_arguments("llama"),
                              {own[0], "--adapter.path=\"" + adapter + "\"", "--train.steps=1",
                               "--optimizer.lr=0"})),
            0);
  const std::map<std::string, std::vector<float>> begun = next.state();
  for (const auto& [name, values] : state) {
    if (name.ends_with(".master")) {
      EXPECT_EQ(begun.at(name), values) << name;
    }
  }

  // vLLM refuses adapters of DoRA.
  const std::string again = scratch_directory("adapter-again");
  const Ended exported = run_command({"export", config, "--to", again});
  EXPECT_EQ(exported.err.find("vllm serve ") != std::string::npos, kind == "lora") << exported.err;
  EXPECT_NE(exported.err.find(" --merged --to DIR"), std::string::npos) << exported.err;
  std::filesystem::remove_all(again);

  const std::string merged = scratch_directory("adapter-merged");
  ASSERT_EQ(run_command_line({"export", config, "--merged", "--to", merged}), 0);
  // Adding the product first rounds otherwise: 1e-5 of the loss.
  EXPECT_NEAR(eval_loss(joined(evaluated, {"--from", merged})), loss, 1e-5 * loss);
  EXPECT_EQ(eval_loss(joined(evaluated, {"--from", adapter})), loss);
  std::filesystem::remove_all(merged);
}

// The exported adapter starts another run where this one ended, and the merged model gives the same
// loss as the model with its adapters.
TEST(AdapterRuns, ExportsAreTheTrainedModel) {
  for (const std::string kind : {"lora", "dora"}) expect_exports_of(kind);
}

}  // namespace
}  // namespace longshore
