// A run is the same run, or says so: frozen weights that are no longer those that it began with end
// every later start, evaluation and export, on any tier and number of ranks. Each change is of one
// value in the last shard, with the file's size and times kept.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "base/file.h"
#include "hf/safetensors_reader.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/edited_model.h"
#include "tests/parity/run_driver.h"
#include "trainer/model/export_run.h"
#include "trainer/model/frozen_check.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChanged = "model.layers.1.mlp.down_proj.weight";

// The ways in which a run keeps its frozen parameters.
struct Tier {
  std::string name;
  Arguments arguments;
};

const std::vector<Tier>& tiers() {
  static const std::vector<Tier> all = [] {
    const Arguments lora = {"--adapter.kind=lora", "--adapter.r=4"};
    return std::vector<Tier>{
        {"host", lora},
        {"files", joined(lora, {"--offload.parameters=files"})},
        {"nf4", joined(lora, {"--adapter.base=nf4"})},
        {"freeze", {"--train.freeze=[\"model.layers.*\"]"}},
        {"freeze-files", {"--train.freeze=[\"model.layers.*\"]", "--offload.parameters=files"}},
    };
  }();
  return all;
}

// SameStart: a model of its own whose last shard can change in place.
class SameStart : public testing::Test {
 protected:
  SameStart() : model_("llama") { model_.write(); }

  std::string weights() const { return model_.directory() + "/model.safetensors"; }

  Arguments arguments_of(const Tier& tier, const Arguments& more = {}) const {
    return joined(joined(joined(RunDriver::golden_arguments("llama"),
                                {"--model.path=\"" + model_.directory() + "\"", "--train.steps=2",
                                 "--train.sequences_per_step=4", "--checkpoint.export=never"}),
                         tier.arguments),
                  more);
  }

  // Changes the last value of the last block in place, or changes it back.
  void change() const {
    struct stat before{};
    ASSERT_EQ(::stat(weights().c_str(), &before), 0);
    const auto file = SafetensorsFile::open(weights());
    const TensorInfo& tensor = file.tensor(kChanged);
    const Bytes place = tensor.file_begin + tensor.bytes - 2;
    {
      std::fstream stream(weights(), std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(place);
      const char old = static_cast<char>(stream.get());
      stream.seekp(place);
      stream.put(static_cast<char>(old ^ 1));
    }
    const timespec times[2] = {before.st_atim, before.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, weights().c_str(), times, 0), 0);
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

  void expect_named(const std::string& said, const std::string& what) const {
    EXPECT_NE(said.find(weights() + ": tensor '" + kChanged + "' has other values"),
              std::string::npos)
        << what << ": " << said;
  }

  // A run that is saved on `from` ranks refuses the changed model on each number of `to`, leaves
  // its record as it was, and goes on over the right one.
  void expect_refused(const Tier& tier, int from, const std::vector<int>& to) const {
    RunDriver run("same-start");
    std::string said;
    ASSERT_EQ(train(run, from, arguments_of(tier), said), 0) << said;
    const auto saved = record_of(run.directory() + "/checkpoints");
    const Arguments on = arguments_of(tier, {"--train.steps=3"});
    change();
    for (const int ranks : to) {
      const std::string what =
          tier.name + ", " + std::to_string(from) + " to " + std::to_string(ranks) + " ranks";
      EXPECT_EQ(train(run, ranks, on, said), 6) << what << ": " << said;
      expect_named(said, what);
      EXPECT_EQ(record_of(run.directory() + "/checkpoints"), saved) << what;
    }
    change();
    EXPECT_EQ(train(run, to.back(), on, said), 0) << tier.name << ": " << said;
  }

  EditedModel model_;
};

// Every tier refuses on another number of ranks; the sums of shards add up to the same whole.
TEST_F(SameStart, RefusesOtherFrozenValuesOnEveryTier) {
  const std::vector<std::pair<int, std::vector<int>>> ranks = {
      {1, {1, 3}}, {2, {3}}, {3, {2, 1}}, {1, {2}}, {2, {1}}};
  for (size_t i = 0; i < tiers().size(); ++i) {
    expect_refused(tiers()[i], ranks[i].first, ranks[i].second);
  }
}

// All pairs of up to four ranks, where the frozen model stays in its files: each rank reads its own
// shard of it.
TEST_F(SameStart, RefusesOtherFrozenValuesOnAnyNumberOfRanks) {
  for (const int from : {1, 2, 3, 4}) expect_refused(tiers()[1], from, {1, 2, 3, 4});
}

class LongSameStart : public SameStart {};

TEST_F(LongSameStart, RefusesOtherFrozenValuesOnEveryTierAndPairOfRanks) {
  for (const Tier& tier : tiers()) {
    for (const int from : {1, 2, 3, 4}) expect_refused(tier, from, {1, 2, 3, 4});
  }
}

// The identity is that of the model, so a run that moves between host memory and files, or between
// strategies and units, compares too.
TEST_F(SameStart, ComparesAcrossTiersAndUnits) {
  RunDriver run("same-start-moves");
  std::string said;
  const Tier& lora = tiers()[0];
  ASSERT_EQ(train(run, 1, arguments_of(lora), said), 0) << said;
  change();
  for (const Arguments& way :
       std::vector<Arguments>{{"--offload.parameters=files"},
                              {"--fsdp.units=half"},
                              {"--fsdp.units=piece"},
                              {"--optimizer.overlap=backward"},
                              {"--offload.parameters=files", "--optimizer.overlap=backward"}}) {
    EXPECT_EQ(train(run, 1, arguments_of(lora, joined(way, {"--train.steps=3"})), said), 6) << said;
    expect_named(said, way.front());
  }
  EXPECT_EQ(
      train(run, 2, arguments_of(lora, {"--fsdp.strategy=no_shard", "--train.steps=3"}), said), 6)
      << said;
  expect_named(said, "no_shard");
  change();
  EXPECT_EQ(
      train(run, 2, arguments_of(lora, {"--offload.parameters=files", "--train.steps=3"}), said), 0)
      << said;
}

// A model that was written anew with the same values, with other times and another inode, is the
// same.
TEST_F(SameStart, TakesACopyOfTheModel) {
  RunDriver run("same-start-copy");
  std::string said;
  ASSERT_EQ(train(run, 1, arguments_of(tiers()[1]), said), 0) << said;
  model_.write();
  fs::permissions(weights(), fs::perms::owner_read);
  EXPECT_EQ(train(run, 1, arguments_of(tiers()[1], {"--train.steps=3"}), said), 0) << said;
}

// Evaluations, generation and exports that read the model refuse it too, and write nothing.
TEST_F(SameStart, NothingIsPrintedOrExportedOverOtherValues) {
  for (const Tier& tier : tiers()) {
    RunDriver run("same-start-use");
    std::string said;
    ASSERT_EQ(train(run, 1, arguments_of(tier, {"--eval.split=0.2"}), said), 0) << said;
    const std::string config = run.directory() + "/config.toml";
    const std::string to = scratch_directory("same-start-export");
    Arguments merged = {"export", config, "--to", to};
    if (!tier.name.starts_with("freeze")) merged.push_back("--merged");
    ASSERT_EQ(run_command(merged).exit_code, 0) << tier.name;
    fs::remove_all(to);
    change();
    for (const Arguments& command : std::vector<Arguments>{merged, {"eval", config}}) {
      const Ended ended = run_command(command);
      EXPECT_EQ(ended.exit_code, 6) << tier.name << " " << command.front() << ": " << ended.err;
      EXPECT_EQ(ended.out, "") << tier.name << " " << command.front();
      expect_named(ended.err, tier.name + " " + command.front());
    }
    EXPECT_FALSE(fs::exists(to)) << tier.name;
    EXPECT_FALSE(fs::exists(to + ".longshore-partial")) << tier.name;
    change();
  }
}

// The export at the end of a run reads the files once more; a change since the start ends it with
// the run saved, and the same command exports once the file is restored.
TEST_F(SameStart, TheLastExportComparesOnceMore) {
  RunDriver run("same-start-end");
  std::string said;
  const Arguments merged = arguments_of(tiers()[0], {"--checkpoint.export=merged"});
  ASSERT_EQ(train(run, 1, arguments_of(tiers()[0]), said), 0) << said;
  change();
  EXPECT_EQ(train(run, 1, merged, said), 6) << said;
  EXPECT_FALSE(fs::exists(run.directory() + "/hf"));
  change();
  EXPECT_EQ(train(run, 1, merged, said), 0) << said;
  EXPECT_TRUE(fs::exists(run.directory() + "/hf/model.safetensors"));
}

// An export reads frozen values again, also those that its process has read before.
TEST_F(SameStart, AnExportFindsAChangeSinceItsProcessReadTheModel) {
  RunDriver run("same-start-again");
  std::string said;
  ASSERT_EQ(train(run, 1, arguments_of(tiers()[0]), said), 0) << said;
  const ModelSource source(load_run_config({run.directory() + "/config.toml"}, {}));
  read_rest_of_frozen(source);
  const Checkpoint last = Checkpoint::open(run.directory() + "/checkpoints/step-00000002");
  const std::string to = scratch_directory("same-start-again-export");
  change();
  EXPECT_THROW(export_checkpoint(source, last, to, {.merged = true}, {}), CheckpointError);
  EXPECT_FALSE(fs::exists(to));
  change();
  EXPECT_NO_THROW(export_checkpoint(source, last, to, {.merged = true}, {}));
  fs::remove_all(to);
}

// A start that left no checkpoint counts too: a scheduler that repeats the command must not train
// over the damaged file. checkpoint.resume = "never" starts over.
TEST_F(SameStart, ARepeatedStartWithoutACheckpointComparesWithTheFirst) {
  for (const Tier& tier : {tiers()[0], tiers()[1]}) {
    RunDriver run("same-start-requeue");
    std::string said;
    ASSERT_EQ(train(run, 1, arguments_of(tier), said), 0) << said;
    fs::remove_all(run.directory() + "/checkpoints");
    change();
    EXPECT_EQ(train(run, 1, arguments_of(tier), said), 6) << said;
    expect_named(said, tier.name);
    EXPECT_EQ(train(run, 1, arguments_of(tier, {"--checkpoint.resume=never"}), said), 0) << said;
    EXPECT_EQ(train(run, 1, arguments_of(tier, {"--train.steps=3"}), said), 0) << said;
    change();
  }
}

// A run with its own copy on drives does not read the model, and says so; its export does.
TEST_F(SameStart, AModelOnDrivesIsNotReadButForExports) {
  RunDriver run("same-start-drives");
  const std::string drives = scratch_directory("same-start-drives-state");
  const Tier nvme{
      "nvme", joined(tiers()[0].arguments, {"--offload.optimizer=nvme", "--offload.parameters=nvme",
                                            "--offload.nvme=[\"" + drives + "\"]"})};
  std::string said;
  ASSERT_EQ(train(run, 1, arguments_of(nvme), said), 0) << said;
  change();
  EXPECT_EQ(train(run, 1, arguments_of(nvme, {"--train.steps=3"}), said), 0) << said;
  EXPECT_NE(said.find("the run uses its own copy on the drives"), std::string::npos) << said;
  const std::string to = scratch_directory("same-start-drives-export");
  const Ended ended =
      run_command({"export", run.directory() + "/config.toml", "--merged", "--to", to});
  EXPECT_EQ(ended.exit_code, 6) << ended.err;
  expect_named(ended.err, "export");
  EXPECT_FALSE(fs::exists(to));
  fs::remove_all(drives);
}

// Full fine-tuning takes its weights from the checkpoint, so another start has no effect on it.
TEST_F(SameStart, WeightsThatAreTrainedMayChange) {
  RunDriver run("same-start-full"), other("same-start-full-other");
  std::string said;
  const Tier full{"full", {}};
  ASSERT_EQ(train(run, 1, arguments_of(full), said), 0) << said;
  ASSERT_EQ(train(other, 1, arguments_of(full, {"--train.steps=3"}), said), 0) << said;
  change();
  EXPECT_EQ(train(run, 1, arguments_of(full, {"--train.steps=3"}), said), 0) << said;
  EXPECT_TRUE(run.state() == other.state());
}

// A run of DPO over golden pairs, with all parameters trained.
Arguments preference_arguments(const std::string& model, const Arguments& more) {
  return joined(
      joined(RunDriver::golden_arguments("llama"),
             {"--model.path=\"" + model + "\"",
              "--data.train=[\"" + test_data() + "/parity/golden_preference/dpo/pairs.jsonl\"]",
              "--data.format=preference", "--train.loss=dpo", "--train.steps=2",
              "--train.sequences_per_step=4", "--checkpoint.export=never"}),
      more);
}

// The reference's values belong to the weights that computed them: those of another run with equal
// data and the same architecture are refused, and so is an evaluation over another start.
TEST_F(SameStart, AReferenceIsThatOfTheRunsOwnStart) {
  RunDriver one("same-start-dpo"), other("same-start-dpo-other");
  const Arguments eval = {"--data.eval=[\"" + test_data() +
                          "/parity/golden_preference/dpo/pairs.jsonl\"]"};
  std::string said;
  ASSERT_EQ(train(one, 1, preference_arguments(model_.directory(), eval), said), 0) << said;
  change();
  ASSERT_EQ(train(other, 1, preference_arguments(model_.directory(), eval), said), 0) << said;
  const std::string kept = read_whole_file(one.directory() + "/reference_train", 1 << 20);
  fs::copy(other.directory() + "/reference_train", one.directory() + "/reference_train",
           fs::copy_options::overwrite_existing);
  const Arguments on = preference_arguments(model_.directory(), joined(eval, {"--train.steps=3"}));
  EXPECT_EQ(train(one, 1, on, said), 6) << said;
  EXPECT_NE(said.find("belongs to another model"), std::string::npos) << said;
  std::ofstream(one.directory() + "/reference_train") << kept;
  const Ended evaluated = run_command({"eval", one.directory() + "/config.toml"});
  EXPECT_EQ(evaluated.exit_code, 6) << evaluated.err;
  EXPECT_EQ(evaluated.out, "");
  EXPECT_NE(evaluated.err.find("other values than when the run began"), std::string::npos);
  EXPECT_EQ(train(one, 1, on, said), 0) << said;
  change();
  EXPECT_EQ(run_command({"eval", one.directory() + "/config.toml"}).exit_code, 0);
}

// A model that preference.reference names may not be replaced during a run, with times kept or not;
// a copy with the same values may take its place.
TEST_F(SameStart, ADirectoryOfAReferenceKeepsItsValues) {
  for (const Arguments& adapter : std::vector<Arguments>{{}, {"--adapter.kind=lora"}}) {
    RunDriver run("same-start-reference");
    std::string said;
    const Arguments list = preference_arguments(
        golden_directory("llama"),
        joined(adapter, {"--preference.reference=\"" + model_.directory() + "\""}));
    ASSERT_EQ(train(run, 1, list, said), 0) << said;
    model_.write();
    ASSERT_EQ(train(run, 1, joined(list, {"--train.steps=3"}), said), 0) << said;
    change();
    EXPECT_EQ(train(run, 1, joined(list, {"--train.steps=4"}), said), 6) << said;
    EXPECT_NE(said.find("preference.reference: the model has other values"), std::string::npos)
        << said;
    EXPECT_EQ(train(run, 1, joined(list, {"--train.steps=4"}), said), 6) << said;
    change();
    EXPECT_EQ(train(run, 1, joined(list, {"--train.steps=4"}), said), 0) << said;
  }
}

}  // namespace
}  // namespace longshore
