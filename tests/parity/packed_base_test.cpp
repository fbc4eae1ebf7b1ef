// Adapters over a packed model (adapter.base = "nf4" or "fp8", or published in fp8): the bits of a
// run over the unpacked values, in every configuration, and a fraction of the memory.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/number_formats.h"
#include "base/packed_format.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/fp8_model.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

Arguments adapters_over(const std::string& directory, const std::string& golden,
                        const std::string& compute, const std::string& kind) {
  // Norms are summed by unit, so nothing is clipped where units differ.
  return joined(RunDriver::golden_arguments(golden),
                {"--model.path=\"" + directory + "\"", "--adapter.kind=" + kind, "--adapter.r=4",
                 "--train.steps=4", "--train.sequences_per_step=4", "--train.max_grad_norm=0",
                 "--precision.compute=" + compute});
}

// Replaces the matrices of blocks by what a packed model computes with.
void unpack(EditedModel& model, PackedFormat format, const std::string& compute) {
  for (auto& [name, values] : model.values) {
    const std::vector<int64_t>& shape = model.shapes.at(name);
    if (!is_packed_matrix(name, shape)) continue;
    for_matrices(shape, values, [&](std::span<const int64_t> matrix, std::span<float> of_one) {
      decode_packed(format, matrix, packed_matrix(format, matrix, of_one), 0, of_one);
    });
    if (compute == "fp32") continue;
    for (float& value : values) value = bf16_to_float(float_to_bf16_nearest(value));
  }
  model.write();
}

// FNV-1a over the values' bytes.
uint64_t digest(std::span<const float> values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : std::as_bytes(values)) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

void expect_bits_of_unpacked(PackedFormat format, const std::string& golden,
                             const std::string& compute, const std::string& kind) {
  EditedModel model(golden), values(golden, "-unpacked");
  model.write();
  unpack(values, format, compute);
  RunDriver reference("unpacked");
  ASSERT_EQ(reference.train(adapters_over(values.directory(), golden, compute, kind)), 0);
  const Arguments packed = joined(adapters_over(model.directory(), golden, compute, kind),
                                  {"--adapter.base=" + std::string(name_of(format))});
  for (const Arguments& variant : std::vector<Arguments>{
           {},
           {"--fsdp.recompute=none", "--fsdp.prefetch=3"},
           {"--fsdp.units=half", "--offload.activations=host"},
           {"--fsdp.units={ min_parameters = 3000 }", "--optimizer.overlap=backward"},
           {"--fsdp.units={ rows = 100000 }"}}) {
    RunDriver run("packed");
    ASSERT_EQ(run.train(joined(packed, variant)), 0);
    EXPECT_EQ(run.steps("loss"), reference.steps("loss")) << golden << compute << kind;
    EXPECT_TRUE(run.state() == reference.state()) << golden << compute << kind;
  }
}

TEST(PackedBase, GivesTheBitsOfTheUnpackedValues) {
  expect_bits_of_unpacked(PackedFormat::kNf4, "llama", "fp32", "lora");
  expect_bits_of_unpacked(PackedFormat::kNf4, "llama", "bf16", "lora");
  expect_bits_of_unpacked(PackedFormat::kNf4, "qwen3", "fp32", "dora");
  expect_bits_of_unpacked(PackedFormat::kFp8, "llama", "bf16", "lora");
  expect_bits_of_unpacked(PackedFormat::kFp8, "qwen3", "fp32", "dora");
}

// Experts that the files hold one by one or together, transposed or not, with adapters on them
// ("all-linear" of qwen3_moe) and without. With more `rows` than the vocabulary has, groups of
// experts are units, and embedding and head stay whole.
TEST(PackedBase, GivesExpertsTheBitsOfTheUnpackedValues) {
  expect_bits_of_unpacked(PackedFormat::kNf4, "qwen3_moe", "bf16", "lora");
  expect_bits_of_unpacked(PackedFormat::kNf4, "qwen3_moe-fused", "fp32", "lora");
  expect_bits_of_unpacked(PackedFormat::kNf4, "gpt_oss", "fp32", "lora");
  expect_bits_of_unpacked(PackedFormat::kNf4, "glm4_moe", "fp32", "lora");
  expect_bits_of_unpacked(PackedFormat::kFp8, "mixtral", "bf16", "lora");
}

// Experts have the values that bitsandbytes 0.50.2 gives each of their matrices on a CPU
// (quantize_4bit with nf4, blocks of 64 and compress_statistics, then dequantize_4bit): those for
// which its mean of the scales is the one rounded once (base/nf4.h).
TEST(PackedBase, PacksEachExpertAsBitsandbytes) {
  const Arguments all = joined(RunDriver::golden_arguments("gpt_oss"),
                               {"--adapter.kind=lora", "--adapter.targets=[\"attention\"]",
                                "--train.steps=1", "--adapter.base=nf4"});
  RunDriver run("packed-experts");
  ASSERT_EQ(run.train(all), 0);
  const std::string to = run.directory() + "/merged";
  ASSERT_EQ(
      run_command({"export", run.directory() + "/config.toml", "--to", to, "--merged"}).exit_code,
      0);
  const std::map<std::string, std::vector<float>> merged = read_tensors(to + "/model.safetensors");
  const std::string experts = "model.layers.0.mlp.experts.";
  const auto digest_of = [&](const std::string& name, size_t expert) {
    const std::vector<float>& values = merged.at(experts + name);
    const size_t count = values.size() / 5;
    return digest(std::span(values).subspan(expert * count, count));
  };
  EXPECT_EQ(digest_of("gate_up_proj", 2), 0x01815064d7d4d9ceu);
  EXPECT_EQ(digest_of("gate_up_proj", 4), 0xc40756db6fce42d1u);
  EXPECT_EQ(digest_of("down_proj", 0), 0xfa5be39e9de02738u);
  EXPECT_EQ(digest_of("down_proj", 4), 0x8ea4a0e38ad49cddu);
}

// The frozen model takes fewer bytes. A run over it continues from a checkpoint, and its exports
// are those of a run over the unpacked values, also of matrices without an adapter.
TEST(PackedBase, IsSmallAndResumesAndIsExported) {
  EditedModel model("llama"), values("llama", "-unpacked");
  model.write();
  unpack(values, PackedFormat::kNf4, "bf16");
  const std::string attention = "--adapter.targets=[\"attention\"]";
  const Arguments all =
      joined(adapters_over(model.directory(), "llama", "bf16", "lora"), {attention});
  const Arguments packed = joined(all, {"--adapter.base=nf4"});
  RunDriver run("packed-whole"), resumed("packed-resumed"), reference("unpacked-whole");
  ASSERT_EQ(reference.train(
                joined(adapters_over(values.directory(), "llama", "bf16", "lora"), {attention})),
            0);
  ASSERT_EQ(run.train(packed), 0);
  ASSERT_EQ(resumed.train(joined(packed, {"--train.steps=2"})), 0);
  ASSERT_EQ(resumed.train(packed), 0);
  EXPECT_EQ(resumed.steps("loss"), reference.steps("loss"));
  EXPECT_TRUE(resumed.state() == run.state());
  const auto other = run_command(
      {"train", resumed.directory() + "/config.toml", "--adapter.base=fp8", "--train.steps=5"});
  EXPECT_EQ(other.exit_code, 6);
  EXPECT_NE(other.err.find("or with another adapter.base"), std::string::npos) << other.err;
  EXPECT_EQ(resumed.train(joined(all, {"--train.steps=5"})), 6) << "another model";

  const auto resident = [](const RunDriver& of, const std::string& more) {
    return Json::parse(run_command({"plan", of.directory() + "/config.toml", "--json", more}).out)
        .at("host")
        .at("resident_frozen_bytes")
        .get<int64_t>();
  };
  const int64_t small = resident(run, "--offload.host_memory=auto");
  const int64_t large = resident(reference, "--offload.parameters=files");
  EXPECT_GT(small, 0);
  EXPECT_LT(small, large);
  EXPECT_EQ(run.metrics("step").back().at("bytes").at("file_read"), 0);

  const auto exported = [](const RunDriver& of, const std::string& name, const Arguments& more) {
    const std::string to = of.directory() + "/" + name;
    const Arguments command = {"export", of.directory() + "/config.toml", "--to", to};
    EXPECT_EQ(run_command(joined(command, more)).exit_code, 0);
    return to;
  };
  const auto merged = [&](const RunDriver& of) {
    return read_tensors(exported(of, "merged", {"--merged"}) + "/model.safetensors");
  };
  EXPECT_TRUE(merged(run) == merged(reference));

  const Arguments evaluated = {run.directory() + "/config.toml",
                               "--data.eval=[\"" + golden_directory("llama") + "/train.jsonl\"]"};
  const double loss = eval_loss(evaluated);
  EXPECT_EQ(eval_loss(joined(evaluated, {"--from", exported(run, "adapter", {})})), loss);
}

// Goal: a base of random weights that is made in memory is packed as the same weights from files.
TEST(PackedBase, OfRandomWeightsIsThatOfTheSameWeightsInFiles) {
  for (const std::string preset : {"tiny-qwen3", "tiny-qwen3-moe"}) {
    SCOPED_TRACE(preset);
    const std::string directory = scratch_directory("random-base");
    ASSERT_EQ(
        run_command({"init-model", "--preset", preset, "--vocabulary", "257", directory}).exit_code,
        0);
    RunDriver files("of-files"), memory("in-memory");
    for (const std::string format : {"nf4", "fp8"}) {
      const Arguments packed = joined(adapters_over(directory, "llama", "bf16", "lora"),
                                      {"--adapter.base=" + format, "--checkpoint.resume=never"});
      ASSERT_EQ(files.train(packed), 0);
      ASSERT_EQ(memory.train(joined(packed, {"--model.init=random"})), 0);
      EXPECT_EQ(memory.steps("loss"), files.steps("loss"));
      EXPECT_TRUE(memory.state() == files.state());
    }
    std::filesystem::remove_all(directory);
  }
}

// A model or a run that cannot be packed is refused before anything is written.
TEST(PackedBase, IsRefusedWhereItHasNoEffect) {
  EditedModel model("llama");
  model.write();
  const Arguments packed =
      joined(adapters_over(model.directory(), "llama", "fp32", "lora"), {"--adapter.base=nf4"});
  for (const std::string key :
       {"--offload.parameters=files", "--fsdp.gather=host", "--adapter.kind=none"}) {
    RunDriver run("packed-refused");
    testing::internal::CaptureStderr();
    EXPECT_EQ(run.train(joined(packed, {key})), 2) << key;
    EXPECT_NE(testing::internal::GetCapturedStderr().find("adapter.base"), std::string::npos)
        << key;
  }
}

}  // namespace
}  // namespace longshore
