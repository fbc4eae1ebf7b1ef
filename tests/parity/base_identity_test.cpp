// An adapter belongs to the model that it was trained over: another model is refused by its values,
// and the same values are taken from any directory and any files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "hf/safetensors_writer.h"
#include "hf/weight_index.h"
#include "tests/fakes/command_run.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/run_driver.h"
#include "trainer/model/base_identity.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChanged = "model.layers.1.mlp.down_proj.weight";

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Writes the values of a model into two files with an index, in reverse order of their names.
void write_shards(const EditedModel& model, const std::string& directory) {
  fs::create_directories(directory);
  fs::copy(model.directory() + "/config.json", directory);
  const auto middle = std::next(model.shapes.begin(), std::ssize(model.shapes) / 2);
  WeightIndex index{.tensors_of_file = {}, .total_size = 0};
  for (const bool first : {true, false}) {
    const std::string file =
        first ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (auto at = first ? middle : model.shapes.begin();
         at != (first ? model.shapes.end() : middle); ++at) {
      tensors.insert(tensors.begin(), {at->first, TensorDType::kF32, at->second});
      index.tensors_of_file[file].push_back(at->first);
    }
    SafetensorsWriter writer(directory + "/" + file, tensors, {{"format", "pt"}});
    for (const auto& tensor : tensors) {
      const std::vector<float>& values = model.values.at(tensor.name);
      *index.total_size += std::ssize(values) * 4;
      writer.append(std::as_bytes(std::span(values)));
    }
    writer.finish();
  }
  std::ofstream(directory + "/model.safetensors.index.json") << format_weight_index(index);
}

// BaseOfAdapter: a model, the adapter that a run of one step trained over it, and another model
// that differs from it in the last value of one matrix.
class BaseOfAdapter : public testing::Test {
 protected:
  BaseOfAdapter() : model_("llama", "-base"), other_("llama", "-other"), first_("base-first") {
    model_.write();
    other_.values.at(kChanged).back() += 1.0F;
    other_.write();
    EXPECT_EQ(first_.train(arguments(model_.directory(), {"--adapter.kind=lora", "--adapter.r=4",
                                                          "--checkpoint.export=end"})),
              0);
  }

  std::string adapter() const { return first_.directory() + "/hf"; }
  std::string identity_file() const { return adapter() + "/" + kBaseIdentityName; }

  static Arguments arguments(const std::string& model, const Arguments& more) {
    return joined(joined(RunDriver::golden_arguments("llama"),
                         {"--model.path=\"" + model + "\"", "--train.steps=1",
                          "--train.sequences_per_step=4", "--checkpoint.export=never"}),
                  more);
  }
  // The arguments of a run that goes on with the adapter over this model.
  Arguments going_on(const std::string& model, const Arguments& more = {}) const {
    return arguments(model, joined({"--adapter.path=\"" + adapter() + "\""}, more));
  }

  // Trains on this many ranks; returns the exit code, and what was said in `said`.
  static int train(const RunDriver& run, int ranks, const Arguments& arguments, std::string& said) {
    if (ranks > 1) {
      const int code = run.train_ranks(ranks, arguments);
      said = run.output();
      return code;
    }
    testing::internal::CaptureStderr();
    const int code = run.train(arguments);
    said = testing::internal::GetCapturedStderr();
    return code;
  }

  // Expects the refusal to name both models, and the tensor in which they differ.
  void expect_refusal(const std::string& said, const std::string& what) const {
    EXPECT_TRUE(says(said, "trained over '" + model_.directory() + "'")) << what << ": " << said;
    EXPECT_TRUE(says(said, "model.path = '" + other_.directory() + "'")) << what << ": " << said;
    EXPECT_TRUE(says(said, "tensor '" + std::string(kChanged) + "' has other values"))
        << what << ": " << said;
    EXPECT_TRUE(says(said, "--any-base")) << what << ": " << said;
  }

  EditedModel model_, other_;
  RunDriver first_;
};

// Goal: adapters and merged models say which model they were trained over, in the same words.
TEST_F(BaseOfAdapter, IsWrittenBesideAdaptersAndMergedModels) {
  const std::optional<BaseIdentity> identity = read_base_identity(adapter());
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->base, model_.directory());
  EXPECT_EQ(identity->vocabulary, 257);
  EXPECT_EQ(identity->tensors.size(), model_.shapes.size());
  const std::string config = first_.directory() + "/config.toml";
  const std::string merged = scratch_directory("base-merged");
  ASSERT_EQ(run_command({"export", config, "--merged", "--to", merged}).exit_code, 0);
  EXPECT_EQ(read_base_identity(merged), identity);

  // A model that is trained as a whole from the merged one belongs to no other model, and the
  // adapter does not belong to the merged one.
  RunDriver whole("base-whole");
  ASSERT_EQ(whole.train(arguments(merged, {"--checkpoint.export=end"})), 0);
  EXPECT_TRUE(fs::exists(whole.directory() + "/hf/model.safetensors"));
  EXPECT_FALSE(fs::exists(whole.directory() + "/hf/" + kBaseIdentityName));
  RunDriver over("base-over-merged");
  EXPECT_EQ(over.train(going_on(merged)), 2);
  fs::remove_all(merged);
}

// Goal: the identity is that of the values: another directory, other files and other tiers hold the
// same model.
TEST_F(BaseOfAdapter, IsTakenFromAnotherDirectoryAndOtherFiles) {
  const std::string shards = scratch_directory("base-shards");
  write_shards(model_, shards);
  for (const Arguments& tier : std::vector<Arguments>{
           {}, {"--offload.parameters=files"}, {"--adapter.base=nf4"}, {"--fsdp.units=half"}}) {
    RunDriver run("base-moved");
    std::string said;
    EXPECT_EQ(train(run, 1, going_on(shards, tier), said), 0) << said;
    EXPECT_FALSE(says(said, kBaseIdentityName)) << "it was compared, and nothing is to be said";
  }
  const std::string config = first_.directory() + "/config.toml";
  const Ended merged = run_command({"export", config, "--from", adapter(), "--merged", "--to",
                                    shards + "-merged", "--model.path=\"" + shards + "\""});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(read_base_identity(shards + "-merged")->tensors,
            read_base_identity(adapter())->tensors);
  fs::remove_all(shards);
  fs::remove_all(shards + "-merged");
}

// Goal: a model with one other value is refused on every tier and number of ranks before the first
// update; the run has no step and no checkpoint.
TEST_F(BaseOfAdapter, IsRefusedWithOtherValuesOnEveryTier) {
  struct Way {
    int ranks;
    Arguments arguments;
  };
  const std::string drive = scratch_directory("base-drive");
  for (const Way& way :
       std::vector<Way>{{1, {}},
                        {2, {}},
                        {1, {"--offload.parameters=files"}},
                        {2, {"--offload.parameters=files"}},
                        {1, {"--offload.parameters=files", "--optimizer.overlap=backward"}},
                        {1, {"--adapter.base=nf4"}},
                        {1,
                         {"--offload.optimizer=nvme", "--offload.parameters=nvme",
                          "--offload.nvme=[\"" + drive + "\"]"}}}) {
    RunDriver run("base-refused");
    std::string said;
    const std::string what = way.arguments.empty() ? "host" : way.arguments.back();
    EXPECT_EQ(train(run, way.ranks, going_on(other_.directory(), way.arguments), said), 2)
        << what << ": " << said;
    expect_refusal(said, what);
    EXPECT_FALSE(fs::exists(run.directory() + "/checkpoints")) << what;
    const std::string metrics = run.directory() + "/metrics.jsonl";
    EXPECT_TRUE(!fs::exists(metrics) || run.metrics("step").empty()) << what;
  }
  fs::remove_all(drive);
}

// Goal: commands that take the adapter with --from refuse the other model too, and print and write
// nothing; on the tier that leaves the model in its files as well.
TEST_F(BaseOfAdapter, IsRefusedByCommandsThatUseTheAdapter) {
  const std::string config = first_.directory() + "/config.toml";
  const std::string to = scratch_directory("base-use");
  const std::string model = "--model.path=\"" + other_.directory() + "\"";
  for (const std::string tier : {"host", "files"}) {
    for (const Arguments& command :
         std::vector<Arguments>{{"eval", config, "--eval.split=0.2"},
                                {"export", config, "--merged", "--to", to},
                                {"export", config, "--to", to}}) {
      const Arguments all =
          joined(command, {"--from", adapter(), model, "--offload.parameters=" + tier});
      const std::string what = tier + " " + command.front();
      const Ended ended = run_command(all);
      EXPECT_EQ(ended.exit_code, 2) << what << ": " << ended.err;
      EXPECT_EQ(ended.out, "") << what;
      expect_refusal(ended.err, what);
      EXPECT_FALSE(fs::exists(to)) << what;
      const Ended taken = run_command(joined(all, {"--any-base"}));
      EXPECT_EQ(taken.exit_code, 0) << what << ": " << taken.err;
      EXPECT_TRUE(says(taken.err, "without a comparison")) << what << ": " << taken.err;
      fs::remove_all(to);
    }
  }
}

// Goal: a model with tensors of another form is refused before any value is read, by a plan too.
TEST_F(BaseOfAdapter, IsRefusedAtOnceWithTensorsOfAnotherForm) {
  other_.values = model_.values;
  other_.write(TensorDType::kBF16);
  const std::string file = first_.directory() + "/empty.toml";
  std::ofstream(file).close();
  const Arguments plan = joined(
      {"plan", file},
      going_on(other_.directory(), {"--run.dir=\"" + scratch_directory("base-plan") + "\""}));
  const Ended refused = run_command(plan);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(says(refused.err, "is BF16 [")) << refused.err;
  EXPECT_TRUE(says(refused.err, "trained over '" + model_.directory() + "'")) << refused.err;
  EXPECT_EQ(run_command(joined(plan, {"--any-base"})).exit_code, 0);
  EXPECT_EQ(run_command(joined(plan, {"--model.init=random"})).exit_code, 2);
}

// Goal: --any-base takes another model and is in the run's record, so that the run resumes without
// it; what the run exports belongs to the model that it trained over.
TEST_F(BaseOfAdapter, MayBeAnotherOneIfTheRunIsToldSo) {
  RunDriver run("base-any");
  std::string said;
  const Arguments all = going_on(other_.directory(), {"--checkpoint.export=end"});
  EXPECT_EQ(train(run, 1, joined(all, {"--any-base"}), said), 0) << said;
  EXPECT_TRUE(says(said, "without a comparison")) << said;
  const std::string config = run.directory() + "/config.toml";
  EXPECT_TRUE(says(bytes_of(config), "any_base = true"));
  EXPECT_EQ(read_base_identity(run.directory() + "/hf")->base, other_.directory());
  const Ended resumed = run_command({"train", config, "--train.steps=2"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  // The record is about the run's own adapter, not about one that a command names.
  const Ended other = run_command({"eval", config, "--eval.split=0.2", "--from", adapter()});
  EXPECT_EQ(other.exit_code, 2) << other.err;
  expect_refusal(other.err, "eval");
  RunDriver by_key("base-any-key");
  EXPECT_EQ(by_key.train(joined(all, {"--adapter.any_base=true"})), 0);
}

// Goal: a choice without an effect is a mistake.
TEST_F(BaseOfAdapter, MayNotBeAnotherOneWithoutAnAdapterThatIsGiven) {
  for (const std::string word : {"--any-base", "--adapter.any_base=true"}) {
    RunDriver run("base-idle");
    std::string said;
    EXPECT_EQ(train(run, 1, arguments(model_.directory(), {"--adapter.kind=lora", word}), said), 2);
    EXPECT_TRUE(says(said, "has no effect")) << said;
  }
}

// Goal: an adapter that says nothing about its model, as those of PEFT, is taken, and a line says
// that it was not compared; a damaged file is not taken for a missing one.
TEST_F(BaseOfAdapter, IsNotComparedWithoutTheFileWhichIsSaid) {
  const std::string whole = bytes_of(identity_file());
  std::ofstream(identity_file(), std::ios::trunc) << whole.substr(0, whole.size() / 2);
  RunDriver damaged("base-damaged");
  std::string said;
  EXPECT_EQ(train(damaged, 1, going_on(model_.directory()), said), 5);
  EXPECT_TRUE(says(said, identity_file())) << said;
  fs::remove(identity_file());
  RunDriver run("base-unknown");
  EXPECT_EQ(train(run, 1, going_on(other_.directory()), said), 0) << said;
  EXPECT_TRUE(says(said, "has no longshore_base.json")) << said;
  EXPECT_TRUE(says(said, other_.directory())) << said;
  EXPECT_EQ(train(run, 1, going_on(other_.directory(), {"--train.steps=2"}), said), 0) << said;
  EXPECT_FALSE(says(said, "has no longshore_base.json")) << "a resume has its own comparison";
  const Ended eval = run_command(
      {"eval", first_.directory() + "/config.toml", "--eval.split=0.2", "--from", adapter()});
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_TRUE(says(eval.err, "has no longshore_base.json")) << eval.err;
}

}  // namespace
}  // namespace longshore
