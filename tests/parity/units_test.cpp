// Units of any policy give the same bits, apart from the sums whose order depends on them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> state;
};

Outcome train(const std::string& golden, const std::vector<std::string>& more) {
  RunDriver run("units");
  std::vector<std::string> arguments = RunDriver::golden_arguments(golden);
  arguments.insert(arguments.end(), {"--train.steps=10", "--train.sequences_per_step=4"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  EXPECT_EQ(run.train(arguments), 0);
  run.expect_within_plan();
  return {run.steps("loss"), run.state()};
}

const std::string kOneUnit = "{ min_parameters = 100000000 }";

void expect_close(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_LE(std::abs(losses[i] - expected[i]), 1e-5 * expected[i]) << "step " << i + 1;
  }
}

// Goal: fsdp.units changes neither losses nor state, with and without tied weights and a loss unit
// in a group. More rows than the vocabulary has cut no table. Norms are summed by unit and may
// differ in the last bits, so nothing is clipped.
TEST(Units, EveryPolicyGivesTheSameBits) {
  for (const std::string golden : {"llama", "llama-tied", "gpt2"}) {
    const Outcome expected = train(golden, {});
    for (const std::string& units : std::vector<std::string>{
             "{ min_parameters = 4000 }", kOneUnit, "{ classes = [\"Embedding\"] }",
             "{ groups = [[\"embedding\", \"block.0\"]] }",
             "{ groups = [[\"block.1\", \"head\"]] }", "half", "{ rows = 100000 }",
             "{ groups = [[\"block.0.mlp\", \"block.1.attention\"]] }"}) {
      for (const std::string recompute : {"unit", "except-mlp", "none"}) {
        const Outcome grouped =
            train(golden, {"--fsdp.units=" + units, "--fsdp.recompute=" + recompute});
        // In one unit the gradients of a tied matrix alternate by micro-batch: another order of the
        // sum.
        if (units == kOneUnit && golden != "llama") {
          expect_close(grouped.losses, expected.losses);
          continue;
        }
        EXPECT_EQ(grouped.losses, expected.losses) << golden << " " << units;
        EXPECT_TRUE(grouped.state == expected.state) << golden << " " << units;
      }
    }
  }
}

// Goal: the layers that read one layer's keys and values add their gradients in fp32 inside of a
// unit too. Here layer 1 gives them to layers 3 and 5.
TEST(Units, ReadersOfSharedKeysInOneUnitGiveTheSameBits) {
  const Arguments bf16 = {"--precision.compute=bf16", "--train.max_grad_norm=0"};
  const Outcome expected = train("gemma4_text-shared", bf16);
  const Outcome grouped =
      train("gemma4_text-shared",
            joined(bf16, {"--fsdp.units={ groups = [[\"block.1\", \"block.2\", \"block.3\", "
                          "\"block.4\", \"block.5\"]] }"}));
  EXPECT_EQ(grouped.losses, expected.losses);
  EXPECT_TRUE(grouped.state == expected.state);
}

// Goal: halves of blocks change no bit, with every tier and update rule, on one rank and two.
TEST(Units, HalvesGiveTheSameBitsEverywhere) {
  const Arguments same = joined(RunDriver::golden_arguments("llama-tied"),
                                {"--train.steps=6", "--train.sequences_per_step=4",
                                 "--offload.state_format=split-int8", "--precision.compute=bf16"});
  const std::vector<Arguments> ways = {
      {"--fsdp.prefetch=3", "--offload.activations=host", "--fsdp.recompute=none"},
      {"--fsdp.prefetch=2", "--offload.activations=host", "--fsdp.recompute=except-middle"},
      {"--fsdp.prefetch=0", "--optimizer.overlap=backward"},
      {"--offload.optimizer=nvme", "--offload.parameters=nvme", "--offload.activations=nvme"}};
  for (const int ranks : {1, 2}) {
    RunDriver blocks("blocks");
    ASSERT_EQ(blocks.train_ranks(ranks, same), 0) << blocks.output();
    for (const Arguments& way : ways) {
      if (ranks == 2 && way != ways.back()) continue;
      RunDriver halves("halves");
      const Arguments drive = {"--fsdp.units=half",
                               "--offload.nvme=[\"" + halves.directory() + "/drive\"]"};
      ASSERT_EQ(halves.train_ranks(ranks, joined(joined(same, drive), way)), 0) << halves.output();
      EXPECT_EQ(halves.steps("loss"), blocks.steps("loss")) << ranks << " " << way.front();
      EXPECT_TRUE(halves.state() == blocks.state()) << ranks << " " << way.front();
      halves.expect_within_plan();
    }
  }
}

// Goal: a checkpoint resumes in other units; "auto" takes units that fit, or those on the drives.
TEST(Units, ARunGoesOnInOtherUnits) {
  const auto arguments = [](int steps, const std::string& units) {
    return joined(RunDriver::golden_arguments("llama"),
                  {"--train.steps=" + std::to_string(steps), "--fsdp.units=" + units});
  };
  RunDriver unbroken("unbroken"), run("moved"), held("held");
  ASSERT_EQ(unbroken.train(arguments(6, "block")), 0);
  ASSERT_EQ(run.train(arguments(2, "half")), 0);
  ASSERT_EQ(run.train(arguments(4, "block")), 0);
  ASSERT_EQ(run.train(arguments(6, "half")), 0);
  const Arguments drive = {"--offload.optimizer=nvme",
                           "--offload.nvme=[\"" + held.directory() + "/drive\"]"};
  ASSERT_EQ(held.train(joined(arguments(4, "half"), drive)), 0);
  // Without a checkpoint the state on the drive, in halves, is resumed.
  std::filesystem::remove_all(held.directory() + "/checkpoints");
  ASSERT_EQ(held.train(joined(arguments(6, "auto"), drive)), 0);
  for (const RunDriver* other : {&run, &held}) {
    EXPECT_EQ(other->steps("loss"), unbroken.steps("loss"));
    EXPECT_TRUE(other->state() == unbroken.state());
  }
}

void expect_close_state(const RunDriver& run, const RunDriver& expected, const std::string& what) {
  const auto got = run.state(), wanted = expected.state();
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [name, values] : wanted) {
    const std::vector<float>& own = got.at(name);
    ASSERT_EQ(own.size(), values.size()) << what << " " << name;
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(own[i] - values[i], 2.0);
      norm += std::pow(values[i], 2.0);
    }
    EXPECT_LE(std::sqrt(difference), 1e-4 * std::sqrt(norm) + 1e-12) << what << " " << name;
  }
}

// Goal: tables in pieces of rows give the same run apart from the order of sums over the
// vocabulary, and the same bits on every tier; checkpoints resume in any cut.
TEST(Units, TablesInPiecesGiveTheSameRun) {
  for (const std::string golden : {"llama", "llama-tied", "gpt2", "gemma2"}) {
    const auto arguments = [&](int steps, const std::string& units) {
      return joined(RunDriver::golden_arguments(golden),
                    {"--train.steps=" + std::to_string(steps), "--fsdp.units=" + units});
    };
    const std::string rows = "{ rows = 64 }";
    RunDriver whole("whole"), pieces("pieces"), moved("moved");
    ASSERT_EQ(whole.train(arguments(6, "block")), 0);
    ASSERT_EQ(pieces.train(arguments(6, rows)), 0);
    ASSERT_EQ(moved.train(arguments(2, rows)), 0);
    ASSERT_EQ(moved.train(arguments(4, "block")), 0);
    ASSERT_EQ(moved.train(arguments(6, "piece")), 0);
    pieces.expect_within_plan();
    expect_close(pieces.steps("loss"), whole.steps("loss"));
    expect_close_state(pieces, whole, golden);
    expect_close(moved.steps("loss"), whole.steps("loss"));
    expect_close_state(moved, whole, golden + " moved");
  }
}

// Tables in pieces give the same bits on every tier.
TEST(Units, TablesInPiecesGiveTheSameBitsOnEveryTier) {
  const std::vector<Arguments> ways = {
      {"--fsdp.prefetch=3", "--offload.activations=host", "--fsdp.recompute=none"},
      {"--optimizer.overlap=backward", "--fsdp.prefetch=0"},
      {"--offload.optimizer=nvme", "--offload.parameters=nvme", "--offload.activations=nvme"}};
  for (const int ranks : {1, 2}) {
    const Arguments same =
        joined(RunDriver::golden_arguments(ranks == 1 ? "llama" : "llama-tied"),
               {"--train.steps=4", "--fsdp.units={ rows = 64 }",
                "--offload.state_format=split-int8", "--precision.compute=bf16"});
    RunDriver plain("plain");
    ASSERT_EQ(plain.train_ranks(ranks, same), 0) << plain.output();
    for (const Arguments& way : ways) {
      RunDriver run("pieces");
      const Arguments drive = {"--offload.nvme=[\"" + run.directory() + "/drive\"]"};
      ASSERT_EQ(run.train_ranks(ranks, joined(joined(same, drive), way)), 0) << run.output();
      EXPECT_EQ(run.steps("loss"), plain.steps("loss")) << ranks << " " << way.front();
      EXPECT_TRUE(run.state() == plain.state()) << ranks << " " << way.front();
      run.expect_within_plan();
    }
  }
}

// Cuts all sparse layers of qwen3_moe into groups of {4, 2} of 6 experts.
const std::string kGroups =
    "--fsdp.units={ groups = [[\"block.0.experts.0\"], [\"block.2.experts.1\"]] }";
const Arguments kEverythingOnDrives = {"--offload.optimizer=nvme", "--offload.parameters=nvme",
                                       "--offload.activations=nvme"};

Arguments drive_of(const RunDriver& run) {
  return {"--offload.nvme=[\"" + run.directory() + "/drive\"]"};
}

// Goal: sparse layers in halves and groups of experts give the bits of blocks, on every tier, on
// one rank and on two whose tokens choose other experts.
TEST(Units, GroupsOfExpertsGiveTheSameBits) {
  const Arguments same = joined(RunDriver::golden_arguments("qwen3_moe"),
                                {"--train.steps=6", "--train.sequences_per_step=4",
                                 "--offload.state_format=split-int8", "--precision.compute=bf16"});
  const std::vector<Arguments> ways = {
      {"--fsdp.units=half", "--fsdp.prefetch=3", "--offload.activations=host"},
      {kGroups, "--fsdp.prefetch=0", "--optimizer.overlap=backward"},
      {kGroups, "--fsdp.prefetch=2", "--fsdp.recompute=none"},
      {kGroups, "--offload.optimizer=nvme", "--offload.parameters=nvme",
       "--offload.activations=nvme"}};
  for (const int ranks : {1, 2}) {
    RunDriver blocks("blocks");
    ASSERT_EQ(blocks.train_ranks(ranks, same), 0) << blocks.output();
    blocks.expect_within_plan();
    for (const Arguments& way : ways) {
      if (ranks == 2 && way != ways.back()) continue;
      RunDriver groups("groups");
      const Arguments drive = {"--offload.nvme=[\"" + groups.directory() + "/drive\"]"};
      ASSERT_EQ(groups.train_ranks(ranks, joined(joined(same, drive), way)), 0) << groups.output();
      EXPECT_EQ(groups.steps("loss"), blocks.steps("loss")) << ranks << " " << way.back();
      EXPECT_TRUE(groups.state() == blocks.state()) << ranks << " " << way.back();
      groups.expect_within_plan();
    }
  }
}

// Goal: groups of a layer that is experts alone stay within the plan, also where the last one keeps
// the sum of the others because the experts have a width of their own.
TEST(Units, GroupsOfExpertsAloneStayWithinThePlan) {
  const std::string groups = "--fsdp.units={ groups = [[\"block.3.experts.0\"]] }";
  for (const std::string golden : {"nemotron_h-moe", "nemotron_h-latent"}) {
    const Arguments same = {"--train.max_grad_norm=0", "--precision.compute=bf16"};
    const Outcome blocks = train(golden, same);
    const Outcome cut = train(golden, joined(same, {groups, "--offload.activations=host"}));
    EXPECT_EQ(cut.losses, blocks.losses) << golden;
    EXPECT_TRUE(cut.state == blocks.state) << golden;
  }
}

// Goal: ranks whose tokens choose other experts, or none of a group, do not block each other and
// follow one rank. A sum over ranks adds in another order than one over micro-batches, so values
// are close; runs with equal numbers of ranks give the same bits.
TEST(Units, RanksThatRouteDifferentlyFollowOneRank) {
  const Arguments same = joined(RunDriver::golden_arguments("qwen3_moe"),
                                {"--train.steps=8", "--train.sequences_per_step=4"});
  RunDriver one("one");
  ASSERT_EQ(one.train(same), 0);
  for (const int ranks : {2, 4}) {
    RunDriver blocks("blocks"), groups("groups"), hybrid("hybrid");
    ASSERT_EQ(blocks.train_ranks(ranks, same), 0) << blocks.output();
    const Arguments way =
        joined(joined({kGroups, "--fsdp.prefetch=2"}, kEverythingOnDrives), drive_of(groups));
    ASSERT_EQ(groups.train_ranks(ranks, joined(same, way)), 0) << groups.output();
    EXPECT_EQ(groups.steps("loss"), blocks.steps("loss")) << ranks;
    EXPECT_TRUE(groups.state() == blocks.state()) << ranks;
    const Arguments replicas = {kGroups, "--fsdp.strategy=hybrid_shard", "--fsdp.shard_ranks=2"};
    ASSERT_EQ(hybrid.train_ranks(ranks, joined(same, replicas)), 0) << hybrid.output();
    for (const RunDriver* run : {&blocks, &hybrid}) {
      expect_close(run->steps("loss"), one.steps("loss"));
      expect_close_state(*run, one, std::to_string(ranks) + " ranks");
      run->expect_within_plan();
    }
  }
}

// Goal: a step moves the planned bytes, whatever its batch and cut: drive traffic to the byte,
// copies to the device less the positions that short rows leave empty.
TEST(Units, ExpertsMoveTheBytesOfThePlan) {
  constexpr int64_t kPositions = 40, kBatchBytes = 3 * sizeof(int64_t);  // per position
  for (const std::string& units : {std::string("--fsdp.units=block"), kGroups}) {
    std::set<int64_t> padding;
    for (const int64_t sequences : {1, 4, 9}) {
      RunDriver run("bytes");
      const Arguments way =
          joined(joined({units, "--train.steps=3", "--precision.compute=bf16",
                         "--train.sequences_per_step=" + std::to_string(sequences)},
                        kEverythingOnDrives),
                 drive_of(run));
      ASSERT_EQ(run.train(joined(RunDriver::golden_arguments("qwen3_moe"), way)), 0);
      const Json plan = run.plan(1).at("step");
      const auto planned = [&plan](const char* key) { return plan.at(key).get<int64_t>(); };
      for (const Json& step : run.metrics("step")) {
        const Json& bytes = step.at("bytes");
        const int64_t empty = kPositions * sequences - step.at("tokens").get<int64_t>();
        EXPECT_EQ(bytes.at("h2d"), planned("h2d_bytes") - kBatchBytes * empty) << units;
        padding.insert(planned("d2h_bytes") - bytes.at("d2h").get<int64_t>());
        if (step.at("step") == 1) continue;  // nothing to update yet
        EXPECT_EQ(bytes.at("drive_read"), planned("nvme_read_bytes")) << units;
        EXPECT_EQ(bytes.at("drive_write"), planned("nvme_written_bytes")) << units;
      }
    }
    // Gradients go to host memory without their units' padding, which the plan counts.
    EXPECT_EQ(padding.size(), 1u) << units;
  }
}

// Goal: a checkpoint of groups of experts resumes in other units on another number of ranks.
TEST(Units, ExpertsGoOnInOtherUnitsOnOtherRanks) {
  for (const std::string golden : {"qwen3_moe", "gpt_oss"}) {
    const auto arguments = [&](int steps, const std::string& units) {
      return joined(RunDriver::golden_arguments(golden),
                    {"--train.steps=" + std::to_string(steps), units});
    };
    const std::string first = golden == "qwen3_moe" ? kGroups : "--fsdp.units=half";
    RunDriver unbroken("unbroken"), moved("moved");
    ASSERT_EQ(unbroken.train(arguments(6, "--fsdp.units=block")), 0);
    ASSERT_EQ(moved.train_ranks(2, arguments(2, first)), 0) << moved.output();
    ASSERT_EQ(moved.train_ranks(4, arguments(4, "--fsdp.units=half")), 0) << moved.output();
    ASSERT_EQ(moved.train(arguments(6, "--fsdp.units=piece")), 0);
    expect_close(moved.steps("loss"), unbroken.steps("loss"));
    expect_close_state(moved, unbroken, golden + " moved");
  }
}

// fsdp.units = "auto" takes the coarsest units that fit.
TEST(Units, AutoTakesTheCoarsestThatFits) {
  RunDriver run("units-auto");
  const Arguments base = joined(RunDriver::golden_arguments("llama"),
                                {"--train.steps=1", "--fsdp.prefetch=0", "--train.micro_batch=4",
                                 "--train.sequences_per_step=4", "--offload.activations=host"});
  const auto needed = [&](const std::string& units) {
    RunDriver other("units-" + units);
    EXPECT_EQ(other.train(joined(base, {"--fsdp.units=" + units})), 0);
    return other.plan(1)["device"]["total_bytes"].get<int64_t>();
  };
  const int64_t block = needed("block"), half = needed("half");
  ASSERT_LT(half, block);
  const auto planned = [&](int64_t cap) {
    RunDriver other("units-auto");
    EXPECT_EQ(other.train(joined(base, {"--fsdp.units=auto",
                                        "--offload.device_memory=" + std::to_string(cap) + "B"})),
              cap < half ? 3 : 0);
    return other.plan(1)["device"]["total_bytes"].get<int64_t>();
  };
  EXPECT_EQ(planned(block), block);
  EXPECT_EQ(planned(block - 1), half);
  EXPECT_EQ(planned(half), half);
}

// Unknown unit names and sizes are refused.
TEST(Units, UnknownNamesAreRefused) {
  RunDriver run("units-unknown");
  for (const std::string units : {"{ groups = [[\"block.77\"]] }", "{ size = 3 }"}) {
    std::vector<std::string> arguments = RunDriver::golden_arguments("llama");
    arguments.push_back("--fsdp.units=" + units);
    EXPECT_EQ(run.train(arguments), 2) << units;
  }
}

}  // namespace
}  // namespace longshore
