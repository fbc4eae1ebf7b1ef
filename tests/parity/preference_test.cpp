// Runs with preference losses agree with TRL, have the same bits in every configuration, and keep
// the reference of their start.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/gpu.h"
#include "tests/fakes/sketch.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

// PreferenceCase: one directory of golden_preference: the pairs and what TRL's trainer made of
// them.
struct PreferenceCase {
  explicit PreferenceCase(const std::string& name)
      : directory(test_data() + "/parity/golden_preference/" + name),
        facts(read_json_file(directory + "/golden.json", JsonLimits{})) {}

  bool unpaired() const { return facts.at("loss") == "kto"; }
  std::string rows() const { return "[\"" + directory + "/pairs.jsonl\"]"; }

  Arguments arguments() const {
    const Json& adamw = facts.at("adamw");
    Arguments list = joined(
        RunDriver::golden_arguments(facts.at("base").get<std::string>()),
        {"--data.train=" + rows(),
         std::string("--data.format=") + (unpaired() ? "unpaired-preference" : "preference"),
         "--train.loss=" + facts.at("loss").get<std::string>(), "--train.steps=20",
         "--train.sequences_per_step=" + facts.at("pairs_per_step").dump(),
         "--optimizer.lr=" + adamw.at("lr").dump(), "--optimizer.betas=" + adamw.at("betas").dump(),
         "--optimizer.eps=" + adamw.at("eps").dump(),
         "--optimizer.weight_decay=" + adamw.at("weight_decay").dump()});
    for (const auto& [key, value] : facts.at("preference").items()) {
      list.push_back("--preference." + key + "=" + value.dump());
    }
    return list;
  }

  std::string directory;
  Json facts;
};

struct Outcome {
  std::vector<double> losses, norms, margins;
  std::map<std::string, std::vector<float>> state;
};

Outcome outcome_of(const RunDriver& run) {
  return {run.steps("loss"), run.steps("grad_norm"), run.steps("rewards/margins"), run.state()};
}

Outcome train(const std::string& golden, const Arguments& more) {
  RunDriver run("preference");
  EXPECT_EQ(run.train(joined(PreferenceCase(golden).arguments(), more)), 0) << golden;
  return outcome_of(run);
}

// Compares runs whose steps differ by the order of sums alone.
void expect_near(const Outcome& one, const Outcome& other, const std::string& what) {
  ASSERT_EQ(one.losses.size(), other.losses.size()) << what;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(other.losses[i], one.losses[i], 2e-5 * one.losses[i] + 1e-6) << what << " " << i;
    EXPECT_NEAR(other.margins[i], one.margins[i], 2e-5 * (1.0 + std::abs(one.margins[i])))
        << what << " " << i;
  }
  for (const auto& [name, values] : one.state) {
    if (name.ends_with(".master")) {
      EXPECT_LE(relative_error(other.state.at(name), values), 5e-5) << what << " " << name;
    }
  }
}

// Trains 20 steps as TRL did.
void expect_trl(const std::string& name, const Arguments& more) {
  const PreferenceCase golden(name);
  RunDriver run("preference-trl");
  ASSERT_EQ(run.train(joined(golden.arguments(), more)), 0);
  for (const auto& [key, expected] : golden.facts.at("steps").items()) {
    const std::vector<double> mine = run.steps(key);
    ASSERT_EQ(mine.size(), expected.size()) << key;
    for (size_t i = 0; i < mine.size(); ++i) {
      // Rewards begin as differences of equal numbers, whose sign is chance.
      if (key == "rewards/accuracies" && i == 0) continue;
      const double wanted = expected[i].get<double>();
      // Rewards begin at 0, kl returns to it, and the loss of dpo-robust passes it.
      const bool near_zero = key.starts_with("rewards/") || name == "dpo-robust";
      EXPECT_NEAR(mine[i], wanted,
                  1e-4 * std::abs(wanted) + (key == "kl" ? 1e-4
                                             : near_zero ? 2e-5
                                                         : 0.0))
          << key << " step " << i + 1;
    }
  }
  const auto state = run.state();
  for (const auto& [tensor, sketch] : read_sketches(golden.directory + "/golden_sketches.json")) {
    const auto found = state.find(tensor.substr(std::string("final.").size()) + ".master");
    ASSERT_NE(found, state.end()) << tensor;
    EXPECT_LE(relative_error(found->second, sketch), 1e-4) << tensor;
  }
}

const auto kGoldenLosses = testing::Values("dpo", "dpo-qwen3", "dpo-robust", "ipo", "simpo", "orpo",
                                           "kto", "kto-qwen3", "dpo-sft", "simpo-sft");

class Preference : public testing::TestWithParam<std::string> {};

// In 20 steps losses, norms, rewards, log-probabilities and the weights are those of TRL.
TEST_P(Preference, AgreesWithTrl) {
  expect_trl(GetParam(), {});
}

INSTANTIATE_TEST_SUITE_P(Losses, Preference, kGoldenLosses, golden_test_name);

class GpuPreference : public testing::TestWithParam<std::string> {};

// A run on a GPU in fp32 follows TRL.
TEST_P(GpuPreference, AgreesWithTrl) {
  LONGSHORE_NEEDS_GPU();
  expect_trl(GetParam(), {"--device.kind=cuda"});
}

INSTANTIATE_TEST_SUITE_P(Losses, GpuPreference, kGoldenLosses, golden_test_name);

// Tiers, units, recompute, prefetch, threads and the time of updates change no bit. With KTO a
// second pass reads the weights in each step.
void expect_same_bits(const std::string& golden) {
  for (const std::string compute : {"fp32", "bf16"}) {
    const std::string drive =
        "--offload.nvme=[\"" + scratch_directory(golden + "-drive-" + compute) + "\"]";
    const Arguments run = {"--precision.compute=" + compute, "--train.steps=8"};
    const Outcome reference = train(golden, run);
    ASSERT_EQ(reference.losses.size(), 8u);
    for (const Arguments& variant : std::vector<Arguments>{
             {"--fsdp.recompute=none", "--fsdp.prefetch=3"},
             {"--fsdp.units=half", "--offload.activations=host", "--offload.threads=2"},
             {"--fsdp.prefetch=0", "--optimizer.overlap=backward"},
             {"--optimizer.overlap=none"},
             {"--offload.optimizer=nvme", "--offload.parameters=nvme", drive}}) {
      const Outcome outcome = train(golden, joined(run, variant));
      EXPECT_EQ(outcome.losses, reference.losses) << compute << " " << variant.front();
      EXPECT_EQ(outcome.margins, reference.margins) << compute << " " << variant.front();
      EXPECT_TRUE(outcome.state == reference.state) << compute << " " << variant.front();
    }
  }
}

TEST(PreferenceRuns, HaveTheSameBitsInEveryConfiguration) {
  expect_same_bits("dpo");
}

TEST(PreferenceRuns, OfKtoHaveTheSameBitsInEveryConfiguration) {
  expect_same_bits("kto");
}

// Micro-batches, packing, ranks and a head in pieces differ by the order of sums alone. A pair has
// the same weight in all of them.
TEST(PreferenceRuns, AgreeOverMicroBatchesPackingRanksAndPieces) {
  for (const std::string golden : {"dpo", "orpo", "kto", "dpo-sft"}) {
    const Outcome reference = train(golden, {});
    for (const Arguments& variant : std::vector<Arguments>{{"--train.micro_batch=2"},
                                                           {"--train.micro_batch=3"},
                                                           {"--fsdp.units={ rows = 100 }"}}) {
      expect_near(reference, train(golden, variant), golden + variant.front());
    }
    for (const int count : {2, 4}) {
      RunDriver ranks("preference-ranks");
      ASSERT_EQ(ranks.train_ranks(count, PreferenceCase(golden).arguments()), 0) << ranks.output();
      expect_near(reference, outcome_of(ranks), golden + " ranks " + std::to_string(count));
      // The plan counts KTO's second pass, too.
      const Json plan = ranks.plan(count);
      for (const Json& step : ranks.metrics("step")) {
        EXPECT_EQ(step.at("bytes").at("all_gather"), plan.at("step").at("all_gather_bytes"));
      }
    }
    // All pairs in each step, so that packing cannot change which are together.
    // KTO's groups depend on the number of sequences; its one packed sequence is taken 12 times.
    const bool kto = golden == "kto";
    const std::string sequences = "--train.sequences_per_step=";
    const Arguments whole = {sequences + (kto ? "12" : "9"), "--train.steps=4"};
    const Arguments packed = {sequences + (kto ? "12" : "1"), "--train.steps=4",
                              "--data.packing=true", "--data.max_tokens=512"};
    expect_near(train(golden, whole), train(golden, packed), golden + " packed");
  }
}

// With a new adapter the reference is the model itself, so rewards begin at 0.
TEST(PreferenceRuns, TrainAdapters) {
  const Outcome outcome =
      train("dpo", {"--adapter.kind=lora", "--optimizer.lr=0.01", "--train.steps=10"});
  EXPECT_NEAR(outcome.margins.front(), 0.0, 1e-5);
  EXPECT_NEAR(outcome.losses.front(), std::log(2.0), 1e-5);
  EXPECT_GT(outcome.margins.back(), 0.05);
}

// A resumed run has the bits of an uninterrupted one, although its weights at the resumption are no
// longer those of the reference.
void expect_resumed(const std::string& name) {
  const PreferenceCase golden(name);
  const Arguments list = joined(golden.arguments(), {"--data.eval=" + golden.rows()});
  RunDriver whole("preference-whole"), parts("preference-parts");
  ASSERT_EQ(whole.train(joined(list, {"--train.steps=6"})), 0);
  ASSERT_EQ(parts.train(joined(list, {"--train.steps=3"})), 0);
  const std::string kept = read_whole_file(parts.directory() + "/reference_train", 1 << 20);
  ASSERT_EQ(parts.train(joined(list, {"--train.steps=6"})), 0);
  EXPECT_EQ(read_whole_file(parts.directory() + "/reference_train", 1 << 20), kept);
  EXPECT_EQ(parts.steps("loss"), whole.steps("loss"));
  EXPECT_EQ(parts.steps("rewards/margins"), whole.steps("rewards/margins"));
  EXPECT_TRUE(parts.state() == whole.state());
  const Json last = parts.metrics("eval").back(), same = whole.metrics("eval").back();
  EXPECT_EQ(last.at("loss"), same.at("loss"));
  EXPECT_EQ(last.at("rewards/margins"), same.at("rewards/margins"));
}

// The SFT term is in the loss of steps and evaluations, and its figure is reported.
TEST(PreferenceRuns, ReportTheSftTerm) {
  const PreferenceCase golden("dpo");
  const Arguments list =
      joined(golden.arguments(), {"--train.steps=1", "--data.eval=" + golden.rows()});
  RunDriver plain("preference-plain"), with("preference-sft");
  ASSERT_EQ(plain.train(list), 0);
  ASSERT_EQ(with.train(joined(list, {"--preference.sft_weight=0.5"})), 0);
  EXPECT_FALSE(plain.metrics("step").back().contains("sft_loss"));
  const double sft = with.steps("sft_loss").front();
  EXPECT_GT(sft, 1.0);  // of a model without training
  EXPECT_NEAR(with.steps("loss").front(), plain.steps("loss").front() + 0.5 * sft, 1e-6 * sft);
  EXPECT_GT(with.metrics("eval").back().at("sft_loss"), 1.0);
}

TEST(PreferenceRuns, ResumeWithTheReferenceOfTheStart) {
  expect_resumed("dpo");
  expect_resumed("kto");
}

// Goal: KTO without answers of one label, or with the weight 0 for the only one, says so at the
// start.
TEST(PreferenceRuns, OfKtoWithOneLabelSayThatNothingOpposesIt) {
  const PreferenceCase golden("kto");
  const std::string directory = scratch_directory("one-label");
  std::filesystem::create_directories(directory);
  std::ifstream all(golden.directory + "/pairs.jsonl");
  std::ofstream good(directory + "/good.jsonl");
  for (std::string line; std::getline(all, line);) {
    if (parse_json(line, {}, "pairs.jsonl").at("label") == true) good << line << "\n";
  }
  good.close();
  const auto said = [&](const Arguments& more) {
    RunDriver run("preference-one-label");
    testing::internal::CaptureStderr();
    EXPECT_EQ(run.train(joined(golden.arguments(), joined({"--train.steps=1"}, more))), 0);
    return testing::internal::GetCapturedStderr();
  };
  const Arguments only = {"--data.train=[\"" + directory + "/good.jsonl\"]"};
  const std::string one = said(only);
  EXPECT_NE(one.find("learns from good answers alone"), std::string::npos) << one;
  const std::string none = said(joined(only, {"--preference.desirable_weight=0"}));
  EXPECT_NE(none.find("the loss is 0 and nothing is learned"), std::string::npos) << none;
  const std::string both = said({});
  EXPECT_EQ(both.find("answers alone"), std::string::npos) << both;
  std::filesystem::remove_all(directory);
}

// Each answer of a pair is a row of KTO, and kl is in steps, evaluations and `eval`.
TEST(PreferenceRuns, OfKtoTakePairsAsTwoRows) {
  const PreferenceCase golden("dpo");
  RunDriver run("preference-kto-pairs");
  ASSERT_EQ(
      run.train(joined(golden.arguments(), {"--train.loss=kto", "--train.sequences_per_step=6",
                                            "--train.steps=9", "--data.eval=" + golden.rows()})),
      0);
  // 18 rows in steps of 6, so that each third step has the same.
  for (const Json& step : run.metrics("step")) {
    EXPECT_EQ(step.at("sequences"), 6);
    EXPECT_GE(step.at("kl"), 0.0);
    EXPECT_FALSE(step.contains("rewards/accuracies"));
  }
  EXPECT_NEAR(run.steps("loss").front(), 0.5, 1e-5);
  EXPECT_LT(run.steps("loss")[6], 0.499);
  const Json in_run = run.metrics("eval").back();
  EXPECT_GT(in_run.at("rewards/margins"), 0.0);
  const Ended after = run_command({"eval", "--json", run.directory() + "/config.toml"});
  ASSERT_EQ(after.exit_code, 0) << after.err;
  const Json result = Json::parse(after.out);
  EXPECT_EQ(result.at("rows"), 18);
  for (const char* key : {"loss", "kl", "rewards/margins"}) {
    EXPECT_EQ(result.at(key), in_run.at(key)) << key;
  }
}

// A resumption without the reference's values, or with damaged ones, ends with what to do.
TEST(PreferenceRuns, RefuseAMissingOrDamagedReference) {
  const PreferenceCase golden("dpo");
  RunDriver run("preference-refused");
  ASSERT_EQ(run.train(joined(golden.arguments(), {"--train.steps=2"})), 0);
  const std::string path = run.directory() + "/reference_train";
  const std::string kept = read_whole_file(path, 1 << 20);
  const auto fails_with = [&](const std::string& text) {
    testing::internal::CaptureStderr();
    EXPECT_NE(run.train(joined(golden.arguments(), {"--train.steps=4"})), 0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(text), std::string::npos) << said;
    EXPECT_NE(said.find("checkpoint.resume = \"never\""), std::string::npos) << said;
  };
  std::filesystem::remove(path);
  fails_with("is missing");
  std::string damaged = kept;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  std::ofstream(path) << damaged;
  fails_with("is damaged");
  std::string other = kept;
  other.at(other.find("model ")) = 'M';  // in the key
  std::ofstream(path) << other;
  fails_with("belongs to another model");
  std::ofstream(path) << kept;
  EXPECT_EQ(run.train(joined(golden.arguments(), {"--train.steps=4"})), 0);
}

// Another model of the same tokenizer, whatever its family, is the reference: rewards of the first
// step are those of its log-probabilities, which are what a run that starts from it reports.
TEST(PreferenceRuns, CompareWithAnotherModel) {
  const PreferenceCase golden("dpo-qwen3");
  const std::string other = golden_directory("llama");
  // All pairs are in each step.
  const Arguments list =
      joined(golden.arguments(), {"--train.sequences_per_step=9", "--train.steps=3"});
  RunDriver of_other("preference-of-other"), run("preference-other");
  ASSERT_EQ(of_other.train(joined(list, {"--model.path=\"" + other + "\""})), 0);
  const Arguments compared = joined(list, {"--preference.reference=\"" + other + "\""});
  ASSERT_EQ(run.train(compared), 0);
  const double beta = golden.facts.at("preference").at("beta").get<double>();
  for (const std::string answer : {"chosen", "rejected"}) {
    const double reference = of_other.steps("logps/" + answer).front();
    const double expected = beta * (run.steps("logps/" + answer).front() - reference);
    EXPECT_NEAR(run.steps("rewards/" + answer).front(), expected, 1e-5 * std::abs(reference));
    EXPECT_GT(std::abs(expected), 1e-3);
  }
  RunDriver ranks("preference-other-ranks");
  ASSERT_EQ(ranks.train_ranks(2, compared), 0) << ranks.output();
  expect_near(outcome_of(run), outcome_of(ranks), "ranks");
}

// The values of another model are kept, and computed again where they are missing or of other data.
// A run that finds them does not measure that model.
TEST(PreferenceRuns, KeepTheValuesOfAnotherModel) {
  const PreferenceCase golden("dpo");
  const Arguments list =
      joined(golden.arguments(), {"--preference.reference=\"" + golden_directory("qwen3") + "\"",
                                  "--data.eval=" + golden.rows()});
  RunDriver whole("preference-kept-whole"), parts("preference-kept");
  ASSERT_EQ(whole.train(joined(list, {"--train.steps=6"})), 0);
  ASSERT_EQ(parts.train(joined(list, {"--train.steps=2"})), 0);
  const std::string path = parts.directory() + "/other_reference_train";
  const std::string kept = read_whole_file(path, 1 << 20);
  const auto written = std::filesystem::last_write_time(path);
  const std::string workspace = parts.directory() + "/cache/workspace";
  const auto measured = [&workspace] {
    return std::distance(std::filesystem::directory_iterator(workspace), {});
  };
  const auto of_both = measured();
  std::filesystem::remove_all(workspace);
  ASSERT_EQ(parts.train(joined(list, {"--train.steps=4"})), 0);
  EXPECT_EQ(std::filesystem::last_write_time(path), written);
  EXPECT_LT(measured(), of_both);
  std::ofstream(path) << "damaged";
  ASSERT_EQ(parts.train(joined(list, {"--train.steps=6"})), 0);
  EXPECT_EQ(read_whole_file(path, 1 << 20), kept);
  EXPECT_EQ(parts.steps("rewards/margins"), whole.steps("rewards/margins"));
  EXPECT_TRUE(parts.state() == whole.state());
  // `eval` computes them again, also for another model than the run's.
  const std::string config = parts.directory() + "/config.toml";
  const Ended after = run_command({"eval", "--json", config});
  ASSERT_EQ(after.exit_code, 0) << after.err;
  EXPECT_EQ(Json::parse(after.out).at("loss"), parts.metrics("eval").back().at("loss"));
  const Ended same = run_command({"eval", "--json", config, "--from", golden_directory("qwen3")});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_NEAR(Json::parse(same.out).at("loss").get<double>(), std::log(2.0), 1e-6);
}

// "adapter-off" is the model below a trained adapter, which "start" is not.
TEST(PreferenceRuns, CompareWithTheModelBelowAnAdapter) {
  const std::string adapter = adapter_golden_directory("llama") + "/adapter";
  const Arguments run = {"--adapter.kind=lora", "--adapter.path=\"" + adapter + "\"",
                         "--train.steps=4"};
  const Outcome start = train("dpo", run);
  const Outcome off = train("dpo", joined(run, {"--preference.reference=adapter-off"}));
  const Outcome named =
      train("dpo", joined(run, {"--preference.reference=\"" + golden_directory("llama") + "\""}));
  EXPECT_NEAR(start.margins.front(), 0.0, 1e-5);
  EXPECT_GT(std::abs(off.margins.front()), 1e-3);
  EXPECT_EQ(off.losses, named.losses);
  EXPECT_EQ(off.margins, named.margins);
  EXPECT_TRUE(off.state == named.state);
}

// The plan shows the pass of another model, with peaks within the run's caps.
TEST(PreferenceRuns, PlanThePassOfAnotherModel) {
  const PreferenceCase golden("dpo");
  RunDriver run("preference-plan");
  ASSERT_EQ(run.train(joined(golden.arguments(),
                             {"--preference.reference=\"" + golden_directory("qwen3") + "\"",
                              "--offload.device_memory=64MiB", "--train.steps=1"})),
            0);
  const Json pass = run.plan(1).at("reference");
  EXPECT_GT(pass.at("device_bytes"), 0);
  EXPECT_LE(pass.at("device_bytes"), 64 << 20);
  EXPECT_GT(pass.at("host_bytes"), 0);
  const Ended shown = run_command({"plan", run.directory() + "/config.toml"});
  EXPECT_NE(shown.out.find(golden_directory("qwen3") + " computes"), std::string::npos)
      << shown.out;
}

// Rows in the schemas of UltraFeedback (messages) and hh-rlhf (texts with their prompt inside)
// train without a key about them.
TEST(PreferenceRuns, TrainOnPublicDataSetsAsTheyAre) {
  const std::string directory = scratch_directory("preference-public");
  const std::string model = directory + "/model";
  ASSERT_EQ(run_command({"init-model", model, "--preset", "tiny-llama"}).exit_code, 0);
  std::ofstream(model + "/chat_template.jinja")
      << "{% for message in messages %}{{ message.role }}: {{ message.content }}"
         "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
  std::ofstream(directory + "/ultrafeedback.jsonl")
      << R"({"prompt": "Name a sea.", "prompt_id": "a1", "score_chosen": 8.5, )"
         R"("chosen": [{"content": "Name a sea.", "role": "user"}, )"
         R"({"content": "The Baltic.", "role": "assistant"}], )"
         R"("rejected": [{"content": "Name a sea.", "role": "user"}, )"
         R"({"content": "Berlin.", "role": "assistant"}], "score_rejected": 3.0})"
      << "\n";
  std::ofstream(directory + "/hh-rlhf.jsonl")
      << R"({"chosen": "\n\nHuman: Hi\n\nAssistant: Hello!", )"
         R"("rejected": "\n\nHuman: Hi\n\nAssistant: No."})"
      << "\n";
  for (const std::string rows : {"ultrafeedback", "hh-rlhf"}) {
    RunDriver run("preference-" + rows);
    ASSERT_EQ(run.train({"--model.path=\"" + model + "\"", "--device.kind=cpu", "--train.steps=2",
                         "--data.train=" + directory + "/" + rows + ".jsonl", "--train.loss=dpo"}),
              0)
        << rows;
    EXPECT_NEAR(run.steps("loss").front(), std::log(2.0), 1e-3) << rows;
    EXPECT_EQ(run.steps("rewards/margins").size(), 2u) << rows;
  }
  std::filesystem::remove_all(directory);
}

// A reference that the loss does not use, or whose tokens are others, is refused with the reason.
TEST(PreferenceRuns, RefuseAReferenceOfOtherTokens) {
  const std::string directory = scratch_directory("preference-tokens");
  const std::string own = directory + "/own", same = directory + "/same";
  const std::string larger = directory + "/larger", renamed = directory + "/renamed";
  for (const std::string& model : {own, same, renamed}) {
    ASSERT_EQ(run_command({"init-model", model, "--preset", "tiny-llama"}).exit_code, 0);
  }
  ASSERT_EQ(run_command({"init-model", larger, "--vocabulary", "300"}).exit_code, 0);
  for (const std::string name : {"/tokenizer.json", "/tokenizer_config.json"}) {
    std::string text = read_whole_file(renamed + name, 1 << 20);
    for (size_t at = 0; (at = text.find("<|endoftext|>", at)) != std::string::npos;) {
      text.replace(at, 13, "<|finished|>");
    }
    std::ofstream(renamed + name) << text;
  }
  std::ofstream(directory + "/pairs.jsonl")
      << R"({"prompt": "a", "chosen": "good", "rejected": "bad"})" << "\n";
  std::ofstream(directory + "/run.toml") << "[run]\ndir = \"" << directory << "/run\"\n";
  const auto said = [&](const Arguments& more) {
    return run_command(
               joined({"check", "run", directory + "/run.toml", "--model.path=\"" + own + "\"",
                       "--data.train=" + directory + "/pairs.jsonl", "--train.loss=dpo",
                       "--train.steps=1", "--device.kind=cpu"},
                      more))
        .err;
  };
  const auto reference = [](const std::string& model) {
    return Arguments{"--preference.reference=\"" + model + "\""};
  };
  EXPECT_EQ(said(reference(same)).find("preference.reference"), std::string::npos);
  EXPECT_NE(said(reference(larger)).find("its vocabulary has 300 tokens"), std::string::npos);
  const std::string other = said(reference(renamed));
  EXPECT_NE(other.find("token 0 is \"<|finished|>\", not \"<|endoftext|>\""), std::string::npos)
      << other;
  EXPECT_NE(said({"--preference.reference=adapter-off"}).find("needs adapters"), std::string::npos);
  EXPECT_NE(said(joined(reference(same), {"--train.loss=orpo"})).find("has no effect"),
            std::string::npos);
  std::filesystem::remove_all(directory);
}

// `eval` compares with the start of the run, as evaluations in the run do.
TEST(PreferenceRuns, AreEvaluatedAgainstTheirStart) {
  const PreferenceCase golden("dpo");
  RunDriver run("preference-eval");
  ASSERT_EQ(run.train(joined(golden.arguments(), {"--data.eval=" + golden.rows()})), 0);
  const Json in_run = run.metrics("eval").back();
  EXPECT_FALSE(in_run.contains("perplexity"));
  EXPECT_EQ(in_run.at("rewards/accuracies"), 1.0);
  const std::string config = run.directory() + "/config.toml";
  const Ended after = run_command({"eval", "--json", config});
  ASSERT_EQ(after.exit_code, 0) << after.err;
  const Json result = Json::parse(after.out);
  EXPECT_EQ(result.at("pairs"), 9);
  EXPECT_EQ(result.at("loss"), in_run.at("loss"));
  EXPECT_EQ(result.at("rewards/margins"), in_run.at("rewards/margins"));
  const Ended before = run_command({"eval", "--json", config, "--from", "model"});
  ASSERT_EQ(before.exit_code, 0) << before.err;
  EXPECT_NEAR(Json::parse(before.out).at("loss").get<double>(), std::log(2.0), 1e-6);
}

// A loss and rows that do not fit each other are refused with what to change.
TEST(PreferenceRuns, RefuseRowsThatDoNotFitTheLoss) {
  const PreferenceCase golden("dpo");
  const auto fails_with = [&](const Arguments& more, const std::string& text) {
    RunDriver run("preference-wrong");
    testing::internal::CaptureStderr();
    EXPECT_NE(run.train(joined(golden.arguments(), more)), 0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  fails_with({"--train.loss=sft"}, "set train.loss = \"dpo\"");
  fails_with(
      {"--data.train=[\"" + golden_directory("llama") + "/train.jsonl\"]", "--data.format=tokens"},
      "train.loss needs pairs");
  fails_with({"--train.loss=orpo", "--preference.label_smoothing=0.1"}, "knows no smoothing");
  const std::string judged = PreferenceCase("kto").rows();
  const Arguments rows = {"--data.train=" + judged, "--data.format=unpaired-preference"};
  fails_with(rows, "which train.loss = \"kto\" takes");
  fails_with(joined(rows, {"--train.loss=sft"}), "which train.loss = \"kto\" takes");
  fails_with({"--preference.desirable_weight=2.0"}, "has no effect on");
}

}  // namespace
}  // namespace longshore
