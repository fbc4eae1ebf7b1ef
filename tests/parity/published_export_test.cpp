// Runs over models that were published in MXFP4 or block-scaled fp8, exported in that form
// (checkpoint.export_format, export --format): what is packed again, what keeps its bytes, what is
// said, and what is refused. tests/parity/load_published.py has transformers load such exports.
#include <gtest/gtest.h>

#include <set>

#include "base/file.h"
#include "hf/model_directory.h"
#include "hf/weight_loader.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/fp8_model.h"
#include "tests/parity/run_driver.h"

namespace longshore {
namespace {

constexpr const char* kGolden = "gpt_oss-mxfp4";
const std::string kExperts = "model.layers.0.mlp.experts.";
const Arguments kPublished = {"--checkpoint.export=end", "--checkpoint.export_format=published"};

Arguments over(const std::string& directory, const std::string& golden, const Arguments& more) {
  return joined(joined(RunDriver::golden_arguments(golden),
                       {"--model.path=\"" + directory + "\"", "--train.steps=3"}),
                more);
}

Arguments gpt_oss(const Arguments& more) {
  return over(golden_directory(kGolden), kGolden, more);
}

// Returns the names of the stored tensors whose bytes an export changed. The test fails if names,
// types, shapes, quantization_config or, by more than 1 %, the size are not those of the base.
std::set<std::string> changed_from(const std::string& base, const std::string& written) {
  const ModelDirectory from = ModelDirectory::open(base), to = ModelDirectory::open(written);
  EXPECT_EQ(to.config().at("quantization_config"), from.config().at("quantization_config"));
  std::set<std::string> changed;
  for (const auto& file : from.files()) {
    const SafetensorsFile copy = SafetensorsFile::open(written + "/" + file->name);
    EXPECT_NEAR(static_cast<double>(copy.file_bytes()),
                static_cast<double>(file->file.file_bytes()),
                0.01 * static_cast<double>(file->file.file_bytes()));
    EXPECT_EQ(copy.tensors().size(), file->file.tensors().size());
    for (const TensorInfo& tensor : file->file.tensors()) {
      const TensorInfo& found = copy.tensor(tensor.name);
      EXPECT_EQ(found.dtype, tensor.dtype) << tensor.name;
      EXPECT_EQ(found.shape, tensor.shape) << tensor.name;
      if (copy.hash(found) != file->file.hash(tensor)) changed.insert(tensor.name);
    }
  }
  return changed;
}

std::vector<float> values_of(const std::string& directory, const std::string& name) {
  const ModelDirectory model = ModelDirectory::open(directory);
  const ModelDirectory::TensorRef ref = model.find(name);
  std::vector<float> values(static_cast<size_t>(ref.tensor->elements()));
  read_elements(ref, 0, values);
  return values;
}

// Returns |packed - trained| of the farthest value, in parts of the largest of its 32 inputs.
double farthest(const std::vector<float>& packed, const std::vector<float>& trained,
                int64_t outputs) {
  double most = 0.0;
  for (size_t i = 0; i < packed.size(); ++i) {
    const size_t output = i % static_cast<size_t>(outputs),
                 input = i / static_cast<size_t>(outputs);
    double largest = 0.0;
    for (size_t k = 0; k < 32; ++k) {
      const size_t at = (input / 32 * 32 + k) * static_cast<size_t>(outputs) + output;
      largest = std::max(largest, std::fabs(double{trained[at]}));
    }
    if (largest > 0.0) most = std::max(most, std::fabs(double{packed[i]} - trained[i]) / largest);
  }
  return most;
}

// Goal: gpt_oss trained in full goes back to MXFP4 at the run's end: names, shapes, size and
// quantization_config of the base, values within the format's step of the masters, and a line for
// each matrix and for all. Its loss is that of the exported values, and it can be trained on.
TEST(PublishedExport, OfGptOssIsInMxfp4) {
  RunDriver run("published-mxfp4"), next("published-mxfp4-next");
  testing::internal::CaptureStderr();
  ASSERT_EQ(run.train(gpt_oss(joined(kPublished, {"--optimizer.lr=0.05"}))), 0);
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string to = run.directory() + "/hf";
  const std::set<std::string> changed = changed_from(golden_directory(kGolden), to);
  const std::map<std::string, std::vector<float>> state = run.state();
  for (const std::string name : {"gate_up_proj", "down_proj"}) {
    EXPECT_TRUE(changed.contains(kExperts + name + "_blocks")) << name;
    EXPECT_NE(said.find("packed " + kExperts + name + ": error "), std::string::npos) << said;
    const std::vector<float>& masters = state.at(kExperts + name + ".master");
    // From 6 to 8 steps of 1/4 of the largest, values become 6: at most a quarter of the largest.
    EXPECT_LE(farthest(values_of(to, kExperts + name), masters, name == "down_proj" ? 32 : 64),
              0.25);
  }
  EXPECT_NE(said.find("packed 2 trained matrices in the published form: error "), std::string::npos)
      << said;
  EXPECT_EQ(said.find("far from the trained"), std::string::npos) << said;
  EXPECT_EQ(next.train(over(to, kGolden, {})), 0);
}

// Goal: matrices that are frozen, and those that adapters leave alone, keep their bytes; adapters
// over experts are merged into packed ones; the plan says the bytes that are written.
TEST(PublishedExport, KeepsUntouchedMatrices) {
  RunDriver frozen("published-frozen"), attention("published-attention"), experts("published-lora");
  ASSERT_EQ(frozen.train(gpt_oss(joined(kPublished, {"--train.freeze=[\"*experts*\"]"}))), 0);
  for (const std::string& name :
       changed_from(golden_directory(kGolden), frozen.directory() + "/hf")) {
    EXPECT_EQ(name.find("experts"), std::string::npos) << name;
  }
  const Arguments merged = {"--checkpoint.export=merged", "--checkpoint.export_format=published",
                            "--adapter.kind=lora", "--adapter.r=4"};
  ASSERT_EQ(attention.train(gpt_oss(joined(merged, {"--adapter.targets=[\"q_proj\"]"}))), 0);
  EXPECT_EQ(changed_from(golden_directory(kGolden), attention.directory() + "/hf"),
            (std::set<std::string>{"model.layers.0.self_attn.q_proj.weight"}));
  const Arguments all = gpt_oss(
      joined(merged, {"--adapter.targets=[\"mlp\"]", "--optimizer.lr=0.1", "--train.steps=6"}));
  ASSERT_EQ(experts.train(all), 0);
  const std::string to = experts.directory() + "/hf";
  for (const std::string& name : changed_from(golden_directory(kGolden), to)) {
    EXPECT_NE(name.find("experts"), std::string::npos) << name;
    EXPECT_EQ(name.find("bias"), std::string::npos) << name;
  }
  const std::string bf16 = experts.directory() + "/bf16";
  ASSERT_EQ(
      run_command({"export", experts.directory(), "--merged", "--format", "bf16", "--to", bf16})
          .exit_code,
      0);
  EXPECT_FALSE(read_json_file(bf16 + "/config.json", {}).contains("quantization_config"));
  EXPECT_LE(farthest(values_of(to, kExperts + "gate_up_proj"),
                     values_of(bf16, kExperts + "gate_up_proj"), 64),
            0.26);
  EXPECT_NE(values_of(to, kExperts + "gate_up_proj"),
            values_of(golden_directory(kGolden), kExperts + "gate_up_proj"));
}

// Goal: fp8 goes back to codes and scales; the matrices that nothing changed keep their bytes; the
// command says the same as JSON, and --fp32 and --format bf16 win over the run file.
TEST(PublishedExport, OfFp8HasItsScales) {
  EditedModel model("qwen3");
  write_in_fp8(model);
  RunDriver run("published-fp8");
  const Arguments freeze = {"--train.freeze=[\"*mlp*\"]", "--optimizer.lr=0.01"};
  ASSERT_EQ(run.train(over(model.directory(), "qwen3", joined(kPublished, freeze))), 0);
  const std::string to = run.directory() + "/hf";
  const std::string query = "model.layers.0.self_attn.q_proj.weight";
  const std::set<std::string> changed = changed_from(model.directory(), to);
  EXPECT_TRUE(changed.contains(query));
  EXPECT_TRUE(changed.contains(query + "_scale_inv"));
  for (const std::string& name : changed) EXPECT_EQ(name.find("mlp"), name.npos) << name;
  const std::vector<float> masters = run.state().at(query + ".master");
  EXPECT_LT(relative_error(values_of(to, query), masters), 1.0 / 16.0);

  const Ended again = run_command({"export", run.directory(), "--json", "--to", to + "-again"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(values_of(to + "-again", query), values_of(to, query));
  const Json packed = Json::parse(again.out).at("packed");
  EXPECT_GT(packed.at("surviving").get<double>(), 0.5);
  EXPECT_LT(packed.at("error").get<double>(), 1.0 / 16.0);
  EXPECT_EQ(packed.at("matrices").at(2).at("name"), query) << "in the order of the files";
  for (const char* other : {"--fp32", "--format=bf16"}) {
    const std::string plain = to + other;
    ASSERT_EQ(run_command({"export", run.directory(), other, "--to", plain}).exit_code, 0);
    EXPECT_FALSE(read_json_file(plain + "/config.json", {}).contains("quantization_config"));
  }
}

// Goal: a run whose changes are smaller than the steps of its base's format is told that the export
// is not what it trained, and both ways out work as they are printed.
TEST(PublishedExport, WarnsWhereTheChangeIsLost) {
  RunDriver full("published-lost"), adapters("published-lost-lora");
  testing::internal::CaptureStderr();
  ASSERT_EQ(full.train(gpt_oss(joined(kPublished, {"--optimizer.lr=1e-6"}))), 0);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("because its steps are larger than the changes: the "), std::string::npos)
      << said;
  EXPECT_NE(said.find("longshore export " + full.directory() + " --format bf16 --to DIR"),
            std::string::npos)
      << said;
  const Arguments lora = {"--adapter.kind=lora", "--adapter.r=4", "--adapter.targets=[\"mlp\"]",
                          "--optimizer.lr=1e-4"};
  ASSERT_EQ(adapters.train(gpt_oss(lora)), 0);
  const Ended ended = run_command({"export", adapters.directory(), "--merged", "--format",
                                   "published", "--to", adapters.directory() + "/merged"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::string start = "longshore export " + adapters.directory();
  for (const std::string& part :
       {"the adapter alone (" + start + " --to DIR)", start + " --merged --format bf16 --to DIR"}) {
    EXPECT_NE(ended.err.find(part), std::string::npos) << part << "\n" << ended.err;
  }
}

// Goal: what has no published form is refused before the run starts, by `check run` too, and the
// command refuses options without an effect.
TEST(PublishedExport, IsRefusedWithTheReason) {
  const auto refused = [](const Arguments& arguments, const std::string& reason) {
    RunDriver run("published-refused");
    testing::internal::CaptureStderr();
    EXPECT_EQ(run.train(arguments), 2);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("checkpoint.export_format = \"published\": "), std::string::npos) << said;
    EXPECT_NE(said.find(reason), std::string::npos) << said;
  };
  refused(over(golden_directory("llama"), "llama", kPublished), "not published in a packed format");
  refused(gpt_oss(joined(kPublished, {"--model.init=random"})), "starts from random weights");
  EditedModel model("llama");
  write_in_fp8(model);
  refused(over(model.directory(), "llama",
               joined(kPublished, {"--adapter.kind=lora", "--adapter.base=nf4"})),
          "set adapter.base = \"published\"");

  RunDriver run("published-commands");
  const Arguments adapters = over(golden_directory("llama"), "llama", {"--adapter.kind=lora"});
  ASSERT_EQ(run.train(adapters), 0);
  const auto error_of_export = [&run](const Arguments& more) {
    const Ended ended = run_command(
        joined({"export", run.directory(), "--to", run.directory() + "/refused"}, more));
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_FALSE(std::filesystem::exists(run.directory() + "/refused"));
    return ended.err;
  };
  EXPECT_NE(error_of_export({"--format", "bf16"}).find("--format has no effect on an adapter"),
            std::string::npos);
  EXPECT_NE(
      error_of_export({"--format", "published", "--merged"}).find("not published in a packed"),
      std::string::npos);
  EXPECT_NE(error_of_export({"--format", "bf16", "--fp32"}).find("--fp32"), std::string::npos);
}

}  // namespace
}  // namespace longshore
