#include "config/run_config.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <random>

#include "config/field_table.h"
#include "config/toml_document.h"
#include "tests/config/run_file_fixture.h"

namespace longshore {
namespace {

class RunConfigTest : public RunFileFixture {};

// A run file with keys of every section is read completely.
TEST_F(RunConfigTest, ReadsTheRunFileOfTheDesignPage) {
  const RunConfig config = load(R"(
[run]
dir = "runs/tiny"
seed = 7
[model]
path = "models/tiny-llama"
init = "random"
[data]
train = ["a.jsonl", "b.jsonl"]
eval = ["c.jsonl"]
format = "tokens"
max_tokens = 512
packing = false
overlength = "split"
[train]
epochs = 1.5
micro_batch = 2
max_grad_norm = 0
freeze = ["*.bias"]
[optimizer]
lr = 1e-4
betas = [0.8, 0.999]
decay = "all"
[schedule]
name = "wsd"
decay_steps = 5
[precision]
compute = "fp32"
drain = "bf16"
[fsdp]
prefetch = 0
recompute = "none"
[offload]
state_format = "fp32"
device_memory = "1.5GiB"
threads = 2
[checkpoint]
export = "never"
resume = "runs/old/step-10"
[device]
kind = "cpu"
)");
  EXPECT_EQ(config.run.dir, "runs/tiny");
  EXPECT_EQ(config.run.seed, 7);
  EXPECT_EQ(config.model.init, ModelSection::Init::kRandom);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(config.data.format, DataSection::Format::kTokens);
  EXPECT_FALSE(config.data.packing);
  EXPECT_EQ(config.data.overlength, DataSection::Overlength::kSplit);
  EXPECT_EQ(config.train.epochs, 1.5);
  EXPECT_EQ(config.train.max_grad_norm, 0.0);
  EXPECT_EQ(config.optimizer.betas, (std::array<double, 2>{0.8, 0.999}));
  EXPECT_EQ(config.optimizer.decay, DecayRule::kAll);
  EXPECT_EQ(config.schedule.name, ScheduleSection::Name::kWsd);
  EXPECT_EQ(config.precision.compute, DType::kF32);
  EXPECT_EQ(config.precision.drain, DType::kBF16);
  EXPECT_EQ(config.fsdp.recompute, FsdpSection::Recompute::kNone);
  EXPECT_EQ(config.offload.state_format, StateFormat::kFp32);
  EXPECT_EQ(config.offload.device_memory, 3 * kGiB / 2);
  EXPECT_EQ(config.offload.host_memory, std::nullopt);
  EXPECT_EQ(config.offload.threads, 2);
  EXPECT_EQ(config.checkpoint.export_model, CheckpointSection::Export::kNever);
  EXPECT_EQ(config.checkpoint.resume, "runs/old/step-10");
  EXPECT_EQ(config.device.kind, DeviceSection::Kind::kCpu);
}

// precision.drain follows precision.compute unless it is given.
TEST_F(RunConfigTest, DrainFollowsComputeUnlessSaid) {
  EXPECT_EQ(load(kNeeded).precision.drain_dtype(), DType::kBF16);
  EXPECT_EQ(load(std::string(kNeeded) + "precision.compute = \"fp32\"").precision.drain_dtype(),
            DType::kF32);
}

// A later file wins key by key, and the command line wins over all files.
TEST_F(RunConfigTest, ALaterFileWinsKeyByKeyAndTheCommandLineWinsOverAll) {
  write("a.toml", std::string(kNeeded) + "[optimizer]\nlr = 1.0\neps = 1.0\nweight_decay = 1.0\n");
  write("b.toml", "[optimizer]\neps = 2.0\nweight_decay = 2.0\n");
  const RunConfig config =
      load_run_config({"a.toml", "b.toml"}, {{"optimizer.weight_decay", "3.0"}});
  EXPECT_EQ(config.optimizer.lr, 1.0);
  EXPECT_EQ(config.optimizer.eps, 2.0);
  EXPECT_EQ(config.optimizer.weight_decay, 3.0);
}

// The last of two overrides of one key wins.
TEST_F(RunConfigTest, TheLastOfTwoEqualOverridesWins) {
  EXPECT_EQ(load(kNeeded, {{"run.seed", "1"}, {"run.seed", "2"}}).run.seed, 2);
}

// An override is read as TOML, and as a string where it is none.
TEST_F(RunConfigTest, OverridesAreTomlElseStrings) {
  const RunConfig config = load(kNeeded, {{"data.train", "[\"x\", 'y']"},
                                          {"data.packing", "false"},
                                          {"optimizer.betas", "[0, 0.5]"},
                                          {"optimizer.lr", "3"},
                                          {"train.sequences_per_step", "1_000"},
                                          {"schedule.name", "linear"},
                                          {"model.init", "\"random\""},
                                          {"offload.host_memory", "2GB"},
                                          {"offload.threads", "auto"},
                                          {"model.path", "a b = [c"}});
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"x", "y"}));
  EXPECT_FALSE(config.data.packing);
  EXPECT_EQ(config.optimizer.betas[0], 0.0);
  EXPECT_EQ(config.optimizer.lr, 3.0);
  EXPECT_EQ(config.train.sequences_per_step, 1000);
  EXPECT_EQ(config.schedule.name, ScheduleSection::Name::kLinear);
  EXPECT_EQ(config.model.init, ModelSection::Init::kRandom);
  EXPECT_EQ(config.offload.host_memory, 2'000'000'000);
  EXPECT_EQ(config.offload.threads, std::nullopt);
  EXPECT_EQ(config.model.path, "a b = [c");
}

// An override of a path is used as it stands, because dates and numbers are names too.
TEST_F(RunConfigTest, AnOverrideOfAPathIsTakenAsItStands) {
  for (const char* name : {"2024-01-01", "7", "1.50", "true", "nan", "0x10"}) {
    EXPECT_EQ(load(kNeeded, {{"run.dir", name}}).run.dir, name);
  }
}

// "~" at the start of a path becomes the home directory; globs keep it.
TEST_F(RunConfigTest, ExpandsTheHomeDirectoryInPaths) {
  ASSERT_EQ(::setenv("HOME", "/home/u", 1), 0);
  const RunConfig config = load(
      "run.dir = \"~/r\"\nmodel.path = \"~\"\ndata.train = [\"~/t\", \"a~b\", \"~u/x\"]\n"
      "train.steps = 1\ntrain.freeze = [\"~/kept\"]\n");
  EXPECT_EQ(config.run.dir, "/home/u/r");
  EXPECT_EQ(config.model.path, "/home/u");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"/home/u/t", "a~b", "~u/x"}));
  EXPECT_EQ(config.train.freeze, std::vector<std::string>{"~/kept"});
}

// A run file of "-" is read from standard input, once.
TEST_F(RunConfigTest, ReadsARunFileFromStandardInputOnce) {
  write("in.toml", kNeeded);
  const int kept = ::dup(STDIN_FILENO);
  const int file = ::open("in.toml", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::dup2(file, STDIN_FILENO), STDIN_FILENO);
  ::close(file);
  const RunConfig config = load_run_config({"-"}, {});
  std::string again;
  try {
    load_run_config({"-", "-"}, {}, {.complete = false});
  } catch (const ConfigError& error) {
    again = error.what();
  }
  ::dup2(kept, STDIN_FILENO);
  ::close(kept);
  EXPECT_EQ(config.run.dir, "runs/x");
  EXPECT_EQ(again, "stdin: standard input is given twice");
}

// With complete = false a file may leave out the required keys.
TEST_F(RunConfigTest, WithoutCompletenessAFileMayLeaveOutWhatARunNeeds) {
  EXPECT_EQ(load("optimizer.lr = 1.0", {}, {.complete = false}).optimizer.lr, 1.0);
  EXPECT_EQ(load_run_config({}, {}, {.complete = false}), RunConfig{});
}

// Returns a random value that the key accepts.
KeyValue random_value(const Key& key, std::mt19937_64& random) {
  const double low = key.bounds.min.value_or(-1e6);
  const double high = std::min(key.bounds.max.value_or(1e6), 1e12);
  std::uniform_real_distribution<double> real(std::nextafter(low, high), high);
  const auto integer = [&] { return static_cast<int64_t>(std::ceil(real(random))); };
  const auto string = [&] {
    std::string text = "s";
    const std::string alphabet = "ab\"\\\n\t\x01\x7f'#=[]{}. \xc3\xa9";
    for (uint64_t i = random() % 12; i > 0; --i) {
      const char c = alphabet[random() % (alphabet.size() - 2)];
      text += c;
    }
    return text + "\xc3\xa9";
  };
  if (key.allows_auto && random() % 3 == 0) return AutoValue{};
  switch (key.type) {
    case KeyType::kBool:
      return random() % 2 == 0;
    case KeyType::kInteger:
    case KeyType::kDuration:
      return integer();
    case KeyType::kBytes:
      return random() % 2 == 0 ? integer() : integer() / 1000 * kMiB + kMiB;
    case KeyType::kReal:
      return real(random);
    case KeyType::kRealPair:
      return std::array<double, 2>{real(random), real(random)};
    case KeyType::kReals:
      return std::vector<double>{real(random), real(random)};
    case KeyType::kTable:
      return std::vector<std::string>{"a-b = true", "c_1 = " + quote_toml(string()),
                                      "d = " + std::to_string(integer())};
    case KeyType::kIntegers:
      return std::vector<int64_t>{integer(), integer()};
    case KeyType::kPatterns:
      return std::vector<PatternNumber>{{"a" + string(), real(random)},
                                        {"b" + string(), low + 1.0}};
    case KeyType::kString:
    case KeyType::kPath:
      return string();
    case KeyType::kPaths:
    case KeyType::kStrings:
      return std::vector<std::string>{string(), string()};
    case KeyType::kUnits: {
      UnitsChoice units;
      units.kind = static_cast<UnitsChoice::Kind>(random() % 8);
      if (units.kind == UnitsChoice::Kind::kClasses) units.classes = {string(), string()};
      if (units.kind == UnitsChoice::Kind::kMinParameters)
        units.min_parameters = 1 + int64_t(random() % 999);
      if (units.kind == UnitsChoice::Kind::kRows) units.rows = 1 + int64_t(random() % 999);
      if (units.kind == UnitsChoice::Kind::kGroups) units.groups = {{string()}, {string()}};
      return units;
    }
    case KeyType::kGroups:
      return std::vector<ParameterGroup>{{{string(), string()}, 0.125, {}}, {{string()}, {}, 3e-7}};
    case KeyType::kChoice:
      break;
  }
  return key.choices[random() % key.choices.size()];
}

// A written run file reads back as an equal run, also with its changed keys only.
TEST_F(RunConfigTest, WhatIsWrittenReadsBackEqual) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    RunConfig config;
    for (const Section& section : run_file_sections()) {
      for (const Key& key : section.keys) key.set(config, random_value(key, random));
    }
    const RunConfig read = load(to_toml(config), {}, {.complete = false});
    ASSERT_EQ(read, config) << to_toml(config);
    // A file with the changed keys only gives the same run.
    ASSERT_EQ(load(changed_keys(config), {}, {.complete = false}), config);
  }
}

// changed_keys() writes only keys that differ from the default.
TEST_F(RunConfigTest, WritesOnlyChangedKeysWhenAskedTo) {
  RunConfig config;
  EXPECT_EQ(changed_keys(config), "");
  config.optimizer.lr = 1e-4;
  config.offload.host_memory = 24 * kGiB;
  config.log.every_steps = 5;
  EXPECT_EQ(changed_keys(config),
            "[optimizer]\nlr = 1e-4\n\n[offload]\nhost_memory = \"24GiB\"\n\n[log]\nevery_steps = "
            "5\n");
}

}  // namespace
}  // namespace longshore
