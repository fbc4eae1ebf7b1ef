// Options that must not change a bit: state format, threads, recompute, prefetch, the tier of
// activation checkpoints, the time of updates, the device's cap.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/fakes/gpu.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> state;
  bool operator==(const Outcome&) const = default;
};

Outcome train(const std::string& name, const std::string& golden, const Arguments& more) {
  RunDriver run("bits-" + name);
  const Arguments base =
      joined(RunDriver::golden_arguments(golden),
             {"--train.steps=50", "--train.max_grad_norm=0.9", "--train.sequences_per_step=4"});
  EXPECT_EQ(run.train(joined(base, more)), 0) << name;
  return {run.steps("loss"), run.steps("grad_norm"), run.state()};
}

void expect_bits_of(const Outcome& reference, const std::string& golden, const Arguments& common,
                    const std::vector<Arguments>& variants) {
  for (const Arguments& variant : variants) {
    EXPECT_TRUE(train("variant", golden, joined(common, variant)) == reference)
        << golden << ": " << testing::PrintToString(joined(common, variant));
  }
}

// A family runs each option by itself, or all options in a few shorter runs that change several at
// once. The latter compare the same things, but a failure does not name the option.
enum class Runs : uint8_t { kEachOption, kOptionsTogether };

void expect_formats_agree(const std::string& golden, Runs runs) {
  const bool each = runs == Runs::kEachOption;
  const Arguments common = {each ? "--train.steps=50" : "--train.steps=20"};
  const Outcome reference = train("reference", golden, common);
  ASSERT_EQ(reference.losses.size(), each ? 50u : 20u);
  if (each) {
    expect_bits_of(reference, golden, common,
                   {{"--offload.state_format=fp32"},
                    {"--offload.threads=2"},
                    {"--offload.threads=4"},
                    {"--fsdp.recompute=none"},
                    {"--fsdp.recompute=auto"},
                    {"--fsdp.recompute=except-attention"},
                    {"--fsdp.recompute=except-heads"},
                    {"--fsdp.recompute=except-middle"},
                    {"--fsdp.recompute=except-mlp"},
                    {"--fsdp.prefetch=0"},
                    {"--fsdp.prefetch=3"},
                    {"--optimizer.overlap=none"},
                    {"--offload.activations=host"}});
  } else {
    expect_bits_of(reference, golden, common,
                   {{"--offload.activations=host", "--fsdp.prefetch=3", "--offload.threads=2",
                     "--fsdp.recompute=except-mlp"},
                    {"--fsdp.recompute=auto", "--fsdp.prefetch=0", "--optimizer.overlap=none"}});
  }
  expect_bits_of(reference, golden, common,
                 {{"--offload.activations=host", "--optimizer.overlap=none",
                   "--fsdp.recompute=none", "--fsdp.prefetch=2"},
                  {"--fsdp.recompute=none", "--fsdp.prefetch=0", "--offload.threads=4",
                   "--offload.state_format=fp32"}});
}

void expect_bf16_agrees(const std::string& golden, Runs runs) {
  const bool each = runs == Runs::kEachOption;
  const Arguments common = {"--precision.compute=bf16",
                            each ? "--train.steps=50" : "--train.steps=20"};
  const Outcome reference = train("reference", golden, common);
  expect_bits_of(reference, golden, common,
                 each ? std::vector<Arguments>{{"--offload.state_format=fp32"},
                                               {"--fsdp.recompute=none"},
                                               {"--fsdp.recompute=except-mlp"},
                                               {"--offload.threads=4"}}
                      : std::vector<Arguments>{
                            {"--offload.state_format=fp32", "--fsdp.recompute=except-middle"},
                            {"--fsdp.recompute=none", "--offload.threads=4"}});
}

void expect_rounded_moments_agree(const std::string& golden, Runs runs) {
  for (const std::string format : {"split-bf16", "split-int8"}) {
    const Arguments common = {"--offload.state_format=" + format, "--train.steps=10"};
    const Outcome reference = train("reference", golden, common);
    expect_bits_of(reference, golden, common,
                   runs == Runs::kEachOption
                       ? std::vector<Arguments>{{"--offload.threads=4"}, {"--fsdp.recompute=none"}}
                       : std::vector<Arguments>{{"--offload.threads=4", "--fsdp.recompute=none"}});
  }
}

class SameBits : public testing::TestWithParam<std::string> {
 protected:
  // A family of dense blocks and one of experts take each option alone.
  static Runs runs() {
    return GetParam() == "llama" || GetParam() == "qwen3_moe" ? Runs::kEachOption
                                                              : Runs::kOptionsTogether;
  }
};

// State formats, threads, recompute and prefetch give the same bits.
TEST_P(SameBits, FormatsThreadsRecomputeAndPrefetchAgree) {
  expect_formats_agree(GetParam(), runs());
}

// Configurations have equal bits in bf16 compute, where the device reads the master's upper half.
TEST_P(SameBits, HoldsInBf16Compute) {
  expect_bf16_agrees(GetParam(), runs());
}

// Configurations have equal bits with rounded moments: random bits depend on element and update.
TEST_P(SameBits, HoldsForMomentsThatAreRounded) {
  expect_rounded_moments_agree(GetParam(), runs());
}

class LongSameBits : public testing::TestWithParam<std::string> {};

// Each option alone, over 50 steps, gives the same bits in every family.
TEST_P(LongSameBits, EachOptionAloneAgrees) {
  expect_formats_agree(GetParam(), Runs::kEachOption);
  expect_bf16_agrees(GetParam(), Runs::kEachOption);
  expect_rounded_moments_agree(GetParam(), Runs::kEachOption);
}

// Without clipping, updates in backward give the same bits on either tier.
TEST_P(SameBits, UpdatesInBackwardAgreeWithoutClipping) {
  const Arguments unclipped = {"--train.max_grad_norm=0", "--train.steps=10"};
  const Outcome reference = train("reference", GetParam(), unclipped);
  const std::string drive = "--offload.nvme=[\"" + scratch_directory("drive") + "\"]";
  expect_bits_of(reference, GetParam(), unclipped,
                 {{"--optimizer.overlap=backward"},
                  {"--optimizer.overlap=none"},
                  {"--optimizer.overlap=backward", "--offload.optimizer=nvme", drive}});
}

// Results of blocks are kept for packed documents, several in a micro-batch and several
// micro-batches in a step, on every tier of activation checkpoints. Norms are summed by unit, so
// nothing is clipped.
TEST_P(SameBits, KeptResultsAgreeWithPackedDocuments) {
  const std::vector<std::string> packed = {"--train.steps=10", "--train.micro_batch=2",
                                           "--train.max_grad_norm=0", "--data.packing=true"};
  const Outcome reference = train("reference", GetParam(), packed);
  const std::string drive = "--offload.nvme=[\"" + scratch_directory("drive") + "\"]";
  for (const std::vector<std::string>& variant : std::vector<std::vector<std::string>>{
           {"--fsdp.recompute=except-attention"},
           {"--fsdp.recompute=except-heads", "--offload.activations=host"},
           {"--fsdp.recompute=except-middle", "--offload.activations=host", "--fsdp.prefetch=0"},
           {"--fsdp.recompute=except-mlp"},
           {"--fsdp.recompute=except-mlp", "--offload.activations=nvme", "--fsdp.units=half",
            drive}}) {
    const Outcome kept = train("variant", GetParam(), joined(packed, variant));
    EXPECT_EQ(kept.losses, reference.losses) << GetParam() << " " << variant.front();
    EXPECT_TRUE(kept.state == reference.state) << GetParam() << " " << variant.front();
  }
}

// Two runs of one plan have equal bits.
TEST_P(SameBits, TheSamePlanRepeats) {
  const Arguments two_threads = {"--device.threads=2", "--train.steps=10"};
  EXPECT_TRUE(train("first", GetParam(), two_threads) == train("second", GetParam(), two_threads));
}

// Micro-batches of one and four are close, because sums over positions are split otherwise: 1e-5
// relative on each loss of 20 steps. (Training amplifies differences: a few 1e-5 by step 50.)
TEST_P(SameBits, MicroBatchesOfOneAndFourAreClose) {
  const Outcome one = train("one", GetParam(), {"--train.steps=20"});
  const Outcome four = train("four", GetParam(), {"--train.steps=20", "--train.micro_batch=4"});
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_LE(std::abs(one.losses[i] - four.losses[i]), 1e-5 * one.losses[i]) << i;
  }
}

const auto kFamilies =
    testing::Values("llama", "llama-tied", "qwen2", "gpt2", "gemma2", "gemma3_text", "gemma4_text",
                    "phi3-long", "qwen3_5_text", "lfm2", "nemotron_h", "qwen3_moe", "gpt_oss",
                    "gemma4_text-shared", "gemma4-e2b", "gemma4_text-moe-shared");
INSTANTIATE_TEST_SUITE_P(Families, SameBits, kFamilies, golden_test_name);
INSTANTIATE_TEST_SUITE_P(Families, LongSameBits, kFamilies, golden_test_name);

class SameBitsOfExperts : public testing::TestWithParam<std::string> {};

// Experts have other numbers of rows in every step and units of their own; tiers, prefetch,
// recompute and groups change no bit. Norms are summed by unit, so nothing is clipped.
TEST_P(SameBitsOfExperts, TiersPrefetchRecomputeAndGroupsAgree) {
  // The second of three layers of qwen3_next has no experts, nor the first of deepseek_v3's two.
  // A layer of nemotron_h is experts alone, the first and the last one.
  const bool alone = GetParam() == "nemotron_h-latent";
  const std::string first = GetParam() == "deepseek_v3" ? "block.1" : "block.0";
  const std::string last = alone                        ? "block.3"
                           : GetParam() == "qwen3_next" ? "block.2.experts"
                                                        : "block.1.experts";
  const std::string groups = "--fsdp.units={ groups = [[\"" + first + ".experts.0\"]] }";
  for (const std::string compute : {"fp32", "bf16"}) {
    const std::string drive = "--offload.nvme=[\"" + scratch_directory("drive-" + compute) + "\"]";
    const std::vector<std::string> run = {"--precision.compute=" + compute, "--train.steps=10",
                                          "--train.max_grad_norm=0"};
    const Outcome reference = train("reference", GetParam(), run);
    for (const std::vector<std::string>& variant : std::vector<std::vector<std::string>>{
             {groups, "--fsdp.prefetch=3", "--offload.threads=2"},
             {"--fsdp.units=half", "--fsdp.recompute=none", "--optimizer.overlap=backward"},
             {"--fsdp.units={ groups = [[\"" + last + "\", \"head\"]] }", "--fsdp.prefetch=0",
              "--offload.activations=host"},
             {"--fsdp.units={ min_parameters = 3000 }", "--offload.state_format=fp32",
              "--fsdp.recompute=except-attention"},
             {"--fsdp.recompute=except-mlp"},
             {groups, "--offload.optimizer=nvme", "--offload.parameters=nvme",
              "--offload.activations=nvme", "--fsdp.recompute=except-attention", drive}}) {
      const Outcome outcome = train("variant", GetParam(), joined(run, variant));
      EXPECT_EQ(outcome.losses, reference.losses) << compute << " " << variant.front();
      EXPECT_TRUE(outcome.state == reference.state) << compute << " " << variant.front();
    }
  }
}

// Micro-batches of one and four are close for models with experts.
TEST_P(SameBitsOfExperts, MicroBatchesOfOneAndFourAreClose) {
  const Outcome one = train("one", GetParam(), {"--train.steps=20"});
  const Outcome four = train("four", GetParam(), {"--train.steps=20", "--train.micro_batch=4"});
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_LE(std::abs(one.losses[i] - four.losses[i]), 1e-5 * one.losses[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SameBitsOfExperts,
                         testing::Values("mixtral", "olmoe", "qwen2_moe", "qwen3_next",
                                         "glm4_moe-plain", "deepseek_v3", "nemotron_h-latent"),
                         golden_test_name);

class GpuSameBits : public testing::TestWithParam<std::string> {};

// A GPU gives the same bits whatever the formats, threads, recompute, prefetch and tiers. One
// family takes the options one by one, the others several at once.
TEST_P(GpuSameBits, FormatsRecomputePrefetchAndTiersAgree) {
  LONGSHORE_NEEDS_GPU();
  const bool each = GetParam() == "llama";
  for (const std::string compute : {"fp32", "bf16"}) {
    const Arguments gpu = {"--device.kind=cuda", "--precision.compute=" + compute,
                           each ? "--train.steps=50" : "--train.steps=20"};
    const Outcome reference = train("reference", GetParam(), gpu);
    ASSERT_EQ(reference.losses.size(), each ? 50u : 20u);
    const std::string drive = "--offload.nvme=[\"" + scratch_directory("drive") + "\"]";
    expect_bits_of(reference, GetParam(), gpu, {Arguments{}});  // unchanged, a second time
    expect_bits_of(
        reference, GetParam(), gpu,
        each ? std::vector<Arguments>{{"--offload.state_format=fp32", "--offload.threads=4"},
                                      {"--fsdp.recompute=none"},
                                      {"--fsdp.recompute=except-attention"},
                                      {"--fsdp.recompute=except-mlp", "--offload.activations=host"},
                                      {"--fsdp.prefetch=0"},
                                      {"--fsdp.prefetch=3", "--offload.threads=2"},
                                      {"--offload.optimizer=nvme", drive}}
             : std::vector<Arguments>{
                   {"--offload.state_format=fp32", "--offload.threads=4", "--fsdp.recompute=none",
                    "--fsdp.prefetch=0"},
                   {"--fsdp.prefetch=3", "--offload.threads=2", "--fsdp.recompute=except-attention",
                    "--offload.optimizer=nvme", drive}});
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GpuSameBits,
                         testing::Values("llama", "llama-tied", "gpt2", "qwen3_moe", "gpt_oss"),
                         golden_test_name);

}  // namespace
}  // namespace longshore
