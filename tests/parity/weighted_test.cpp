// Runs with numbers for each token agree with PyTorch in fp64 and have the same bits in every
// configuration.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "tests/fakes/gpu.h"
#include "tests/fakes/sketch.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

// WeightedCase: one directory of golden_weighted: rows and what PyTorch made of them.
struct WeightedCase {
  explicit WeightedCase(const std::string& name)
      : directory(test_data() + "/parity/golden_weighted/" + name),
        facts(read_json_file(directory + "/golden.json", JsonLimits{})) {}

  std::string rows() const { return "[\"" + directory + "/rows.jsonl\"]"; }

  Arguments arguments() const {
    const Json& adamw = facts.at("adamw");
    Arguments list = joined(
        RunDriver::golden_arguments(facts.at("base").get<std::string>()),
        {"--data.train=" + rows(), "--data.format=auto",
         "--train.loss=" + facts.at("loss").get<std::string>(), "--train.steps=20",
         "--train.sequences_per_step=" + facts.at("sequences_per_step").dump(),
         "--optimizer.lr=" + adamw.at("lr").dump(), "--optimizer.betas=" + adamw.at("betas").dump(),
         "--optimizer.eps=" + adamw.at("eps").dump(),
         "--optimizer.weight_decay=" + adamw.at("weight_decay").dump()});
    for (const auto& [section, settings] : facts.at("settings").items()) {
      for (const auto& [key, value] : settings.items()) {
        list.push_back("--" + section + "." + key + "=" + value.dump());
      }
    }
    return list;
  }

  std::string directory;
  Json facts;
};

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> state;
};

Outcome train(const Arguments& arguments) {
  RunDriver run("weighted");
  EXPECT_EQ(run.train(arguments), 0);
  return {run.steps("loss"), run.steps("grad_norm"), run.state()};
}

void expect_same(const Outcome& one, const Outcome& other, const std::string& what) {
  EXPECT_EQ(one.losses, other.losses) << what;
  // Norms are summed by unit, whose order of sums other units change.
  ASSERT_EQ(one.norms.size(), other.norms.size()) << what;
  for (size_t i = 0; i < one.norms.size(); ++i) {
    EXPECT_NEAR(one.norms[i], other.norms[i], 1e-6 * one.norms[i]) << what << " " << i;
  }
  EXPECT_TRUE(one.state == other.state) << what;
}

// Compares runs whose steps differ by the order of sums alone.
void expect_near(const Outcome& one, const Outcome& other, const std::string& what) {
  ASSERT_EQ(one.losses.size(), other.losses.size()) << what;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(other.losses[i], one.losses[i], 2e-5 * (0.1 + std::abs(one.losses[i])))
        << what << " " << i;
  }
  for (const auto& [name, values] : one.state) {
    if (name.ends_with(".master")) {
      EXPECT_LE(relative_error(other.state.at(name), values), 5e-5) << what << " " << name;
    }
  }
}

void expect_torch(const std::string& name, const Arguments& more) {
  const WeightedCase golden(name);
  RunDriver run("weighted-torch");
  ASSERT_EQ(run.train(joined(joined(golden.arguments(), {"--data.eval=" + golden.rows()}), more)),
            0);
  for (const auto& [key, expected] : golden.facts.at("steps").items()) {
    const std::vector<double> mine = run.steps(key);
    ASSERT_EQ(mine.size(), expected.size()) << key;
    for (size_t i = 0; i < mine.size(); ++i) {
      const double wanted = expected[i].get<double>();
      EXPECT_NEAR(mine[i], wanted, 1e-4 * std::abs(wanted) + 1e-6) << key << " step " << i + 1;
    }
  }
  const Json eval = run.metrics("eval").back();
  EXPECT_EQ(eval.contains("perplexity"), name == "sft");
  EXPECT_EQ(eval.contains("policy/ratio"), name == "policy");
  EXPECT_EQ(eval.contains("distill/kl"), name == "distill");
  EXPECT_NEAR(eval.at("loss").get<double>(), eval_loss({run.directory() + "/config.toml"}), 1e-6);
  const auto state = run.state();
  for (const auto& [tensor, sketch] : read_sketches(golden.directory + "/golden_sketches.json")) {
    const auto found = state.find(tensor.substr(std::string("final.").size()) + ".master");
    ASSERT_NE(found, state.end()) << tensor;
    EXPECT_LE(relative_error(found->second, sketch), 1e-4) << tensor;
  }
}

const auto kGoldenCases = testing::Values("sft", "policy", "distill");

class Weighted : public testing::TestWithParam<std::string> {};

// In 20 steps losses, norms, metrics and the weights are those of PyTorch in fp64.
TEST_P(Weighted, AgreesWithTorch) {
  expect_torch(GetParam(), {});
}

// Tiers, units, recompute, prefetch and threads change no bit.
TEST_P(Weighted, HasTheSameBitsInEveryConfiguration) {
  const WeightedCase golden(GetParam());
  for (const std::string compute : {"fp32", "bf16"}) {
    const std::string drive =
        "--offload.nvme=[\"" + scratch_directory("weighted-drive-" + compute) + "\"]";
    const Arguments list =
        joined(golden.arguments(),
               {"--precision.compute=" + compute, "--train.steps=6", "--train.max_grad_norm=0"});
    const Outcome reference = train(list);
    for (const Arguments& variant : std::vector<Arguments>{
             {"--fsdp.recompute=none", "--fsdp.prefetch=3"},
             {"--fsdp.units=half", "--offload.activations=host", "--offload.threads=2"},
             {"--offload.optimizer=nvme", "--offload.parameters=nvme", drive}}) {
      expect_same(reference, train(joined(list, variant)), compute + variant.front());
    }
  }
}

// Micro-batches, packing, ranks and a head in pieces differ by the order of sums alone: the divisor
// is that of the whole step.
TEST_P(Weighted, AgreesOverMicroBatchesPackingRanksAndPieces) {
  const Arguments list = WeightedCase(GetParam()).arguments();
  const Outcome reference = train(list);
  for (const Arguments& variant : std::vector<Arguments>{
           {"--train.micro_batch=2"}, {"--train.micro_batch=3"}, {"--fsdp.units={ rows = 100 }"}}) {
    expect_near(reference, train(joined(list, variant)), variant.front());
  }
  RunDriver ranks("weighted-ranks");
  ASSERT_EQ(ranks.train_ranks(2, list), 0) << ranks.output();
  expect_near(reference, {ranks.steps("loss"), ranks.steps("grad_norm"), ranks.state()}, "ranks");
  // All rows in each step, so that packing cannot change which are together.
  const Outcome whole = train(joined(list, {"--train.sequences_per_step=9", "--train.steps=4"}));
  const Outcome packed = train(joined(list, {"--train.sequences_per_step=1", "--train.steps=4",
                                             "--data.packing=true", "--data.max_tokens=256"}));
  expect_near(whole, packed, "packed");
}

INSTANTIATE_TEST_SUITE_P(Losses, Weighted, kGoldenCases, golden_test_name);

class GpuWeighted : public testing::TestWithParam<std::string> {};

// A run on a GPU in fp32 follows PyTorch.
TEST_P(GpuWeighted, AgreesWithTorch) {
  LONGSHORE_NEEDS_GPU();
  expect_torch(GetParam(), {"--device.kind=cuda"});
}

INSTANTIATE_TEST_SUITE_P(Losses, GpuWeighted, kGoldenCases, golden_test_name);

// Returns the rows of a golden model's data, one a line.
std::vector<std::string> golden_rows() {
  std::istringstream text(read_whole_file(golden_directory("llama") + "/train.jsonl", kMiB));
  std::vector<std::string> rows;
  for (std::string line; std::getline(text, line);) rows.push_back(line);
  return rows;
}

// Returns a row with one more member.
std::string with_member(const std::string& row, const std::string& member) {
  return row.substr(0, row.size() - 1) + ", " + member + "}";
}

// RowFile: a file of rows in a scratch directory.
struct RowFile {
  RowFile(const std::string& name, const std::vector<std::string>& rows)
      : directory(scratch_directory(name)) {
    make_directories(directory);
    std::ofstream file(directory + "/rows.jsonl");
    for (const std::string& row : rows) file << row << "\n";
  }
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;
  ~RowFile() { remove_tree(directory); }
  std::string path() const { return "[\"" + directory + "/rows.jsonl\"]"; }

  std::string directory;
};

// Equal weights are no weights: of 1 they give the bits of a run without, of 4 too, because a
// power of 2 leaves quotients as they are.
TEST(WeightedRuns, EqualWeightsGiveTheBitsOfNone) {
  for (const std::string units : {"block", "{ rows = 100 }"}) {
    const Arguments list =
        joined(RunDriver::golden_arguments("llama"), {"--fsdp.units=" + units, "--train.steps=8"});
    const Outcome plain = train(list);
    for (const std::string weight : {"1", "4"}) {
      std::vector<std::string> rows;
      for (const std::string& row : golden_rows()) {
        rows.push_back(with_member(row, "\"weight\": " + weight));
      }
      const RowFile file("weighted-equal", rows);
      expect_same(plain, train(joined(list, {"--data.train=" + file.path()})), units + weight);
    }
  }
}

// Rows with the weight 0 are as if they were absent.
TEST(WeightedRuns, RowsWithTheWeightZeroAreAbsent) {
  const Arguments list = joined(RunDriver::golden_arguments("llama"), {"--train.steps=8"});
  std::vector<std::string> rows;
  for (const std::string& row : golden_rows()) {
    rows.push_back("{\"input_ids\": [9, 8, 7, 6], \"weight\": 0}");
    rows.push_back(with_member(row, "\"weight\": 1"));
  }
  const RowFile file("weighted-zero", rows);
  expect_same(train(list), train(joined(list, {"--data.train=" + file.path()})), "zero");
}

// The clip's bounds are those of the run file: with bounds that no ratio reaches nothing is held.
TEST(PolicyRuns, UseTheirBoundsOfTheClip) {
  const Arguments list = joined(WeightedCase("policy").arguments(), {"--train.steps=2"});
  RunDriver held("policy-held"), unheld("policy-unheld");
  ASSERT_EQ(held.train(list), 0);
  ASSERT_EQ(unheld.train(joined(list, {"--policy.clip_low=1", "--policy.clip_high=1e6"})), 0);
  EXPECT_GT(held.steps("policy/clip_fraction").front(), 0.0);
  EXPECT_EQ(unheld.steps("policy/clip_fraction").front(), 0.0);
  EXPECT_EQ(unheld.steps("policy/ratio").front(), held.steps("policy/ratio").front());
  EXPECT_NE(unheld.steps("loss").front(), held.steps("loss").front());
}

// Rows and a loss that do not fit each other are refused with what to change.
TEST(PolicyRuns, RefuseRowsThatDoNotFitTheLoss) {
  const auto fails_with = [](const Arguments& list, const std::string& text) {
    RunDriver run("policy-wrong");
    testing::internal::CaptureStderr();
    EXPECT_NE(run.train(list), 0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  fails_with(joined(WeightedCase("policy").arguments(), {"--train.loss=sft"}),
             "set it to \"policy\", or data.format = \"tokens\"");
  fails_with(joined(WeightedCase("policy").arguments(), {"--train.loss=dpo"}),
             "set it to \"policy\"");
  fails_with(joined(WeightedCase("sft").arguments(), {"--train.loss=policy"}),
             "the rows are of format \"tokens\"; give such rows");
}

// A run is planned for the lists of a teacher, and uses no more than its plan: whole heads and
// pieces, with and without what temperature and cross entropy need beside.
TEST(DistillRuns, KeepToTheirPlan) {
  for (const std::string units : {"block", "{ rows = 100 }"}) {
    for (const std::string weight : {"0", "0.3"}) {
      const Arguments list = joined(WeightedCase("distill").arguments(),
                                    {"--fsdp.units=" + units, "--distill.ce_weight=" + weight,
                                     "--train.steps=2", "--distill.top_k=200"});
      RunDriver run("distill-plan");
      ASSERT_EQ(run.train(list), 0) << units << weight;  // compares the peak with the plan
    }
  }
}

// Rows without a teacher, and rows whose teacher would be ignored, are refused with what to change.
TEST(DistillRuns, RefuseRowsThatDoNotFitTheLoss) {
  const auto fails_with = [](const Arguments& list, const std::string& text) {
    RunDriver run("distill-wrong");
    testing::internal::CaptureStderr();
    EXPECT_NE(run.train(list), 0);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find(text), std::string::npos) << said;
  };
  fails_with(joined(WeightedCase("distill").arguments(), {"--train.loss=sft"}),
             "set it to \"distill\", or data.format = \"tokens\"");
  fails_with(joined(WeightedCase("sft").arguments(), {"--train.loss=distill"}),
             "the rows are of format \"tokens\"; give such rows");
  fails_with(joined(WeightedCase("distill").arguments(), {"--distill.top_k=2"}),
             "more than distill.top_k = 2; raise it");
}

// The loss of an evaluation is the weighted mean over its tokens.
TEST(WeightedRuns, AreEvaluatedWithTheirWeights) {
  const std::string first = "{\"input_ids\": [5, 9, 40, 7, 80]}",
                    second = "{\"input_ids\": [6, 3]}";
  RunDriver run("weighted-evaluated");
  ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("llama"), {"--train.steps=1"})), 0);
  const auto loss_of = [&](const std::vector<std::string>& rows) {
    const RowFile file("weighted-eval", rows);
    return eval_loss({run.directory() + "/config.toml", "--data.eval=" + file.path()});
  };
  const double one = loss_of({first}), two = loss_of({second});
  const double both =
      loss_of({with_member(first, "\"weight\": 0.5"), with_member(second, "\"weight\": 3")});
  EXPECT_GT(std::abs(one - two), 0.1);
  EXPECT_NEAR(both, (4 * 0.5 * one + 1 * 3.0 * two) / (4 * 0.5 + 1 * 3.0), 1e-5 * both);
}

}  // namespace
}  // namespace longshore
