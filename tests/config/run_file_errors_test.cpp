// Each wrong run file gives its exact error line.
#include <gtest/gtest.h>

#include "tests/config/run_file_fixture.h"

namespace longshore {
namespace {

struct WrongFile {
  const char* text;
  const char* problem;
};

class RunFileErrors : public RunFileFixture {
 protected:
  static void expect_each(const std::vector<WrongFile>& files) {
    for (const WrongFile& file : files) {
      EXPECT_EQ(problems_beside_needed(file.text), file.problem) << file.text;
    }
  }
};

// A file with the required keys only is accepted.
TEST_F(RunFileErrors, TheNeededKeysAreEnough) {
  EXPECT_EQ(problems(kNeeded), "accepted");
}

// Other programs' names for a choice get this program's name as a proposal.
TEST_F(RunFileErrors, ChoicesThatOthersCallOtherwise) {
  expect_each({
      {"[device]\nkind = \"gpu\"",
       "run.toml:2:8: device.kind: expected \"auto\", \"cpu\" or \"cuda\", found the string "
       "\"gpu\", did you mean \"cuda\"?"},
      {"[precision]\ncompute = \"bfloat16\"",
       "run.toml:2:11: precision.compute: expected \"bf16\" or \"fp32\", found the string "
       "\"bfloat16\", did you mean \"bf16\"?"},
  });
}

// A directory that is listed twice as a drive is refused.
TEST_F(RunFileErrors, ADriveIsNamedOnce) {
  expect_each({
      {"[offload]\nnvme = [\"d/a\", \"d/b\", \"d/./a/\"]",
       "run.toml:2:8: offload.nvme names \"d/./a/\" twice; name one directory on each drive"},
  });
}

// A list on one line has a limit, and an endless list costs no more than its bytes.
TEST_F(RunFileErrors, ListsHaveALimit) {
  std::string list = "[train]\nfreeze = [";
  for (int i = 0; i < 100'001; ++i) list += "\"\",";
  EXPECT_EQ(problems_beside_needed(list + "]"),
            "run.toml:2:10: an array of 100001, the limit is 100000");
}

// Control characters of a file's names are escaped in errors.
TEST_F(RunFileErrors, NamesOfTheFileAreEscaped) {
  EXPECT_EQ(problems_beside_needed("[train]\n\"\\u001b[2J\" = 1"),
            "run.toml:2:1: unknown key 'train.\\x1b[2J' (longshore config keys train)");
}

// Unknown keys and sections are refused, and the nearest name is proposed.
TEST_F(RunFileErrors, UnknownNamesGetTheNearestOne) {
  expect_each({
      {"[optimizer]\nweigth_decay = 1.0",
       "run.toml:2:1: unknown key 'optimizer.weigth_decay', did you mean 'weight_decay'? "
       "(longshore config keys optimizer)"},
      {"[optimizer]\n  Lr = 1.0",
       "run.toml:2:3: unknown key 'optimizer.Lr', did you mean 'lr'? (longshore config keys "
       "optimizer)"},
      {"[optimizer]\nmomentum = 0.9",
       "run.toml:2:1: unknown key 'optimizer.momentum' (longshore config keys optimizer)"},
      {"[schedule]\nlr = 1.0",
       "run.toml:2:1: unknown key 'schedule.lr', did you mean 'optimizer.lr'? (longshore config "
       "keys schedule)"},
      {"[optimiser]\nlr = 1.0",
       "run.toml:1:2: unknown section 'optimiser', did you mean 'optimizer'? (longshore config "
       "keys)"},
      {"[nvme]\npath = 1", "run.toml:1:2: unknown section 'nvme' (longshore config keys)"},
      {"[lora]\nr = 1",
       "run.toml:1:2: unknown section 'lora', did you mean 'adapter'? (longshore config keys)"},
      {"[train]\nlearning_rate = 1e-5",
       "run.toml:2:1: unknown key 'train.learning_rate', did you mean 'optimizer.lr'? (longshore "
       "config keys train)"},
      {"[train]\nbatch_size = 4",
       "run.toml:2:1: unknown key 'train.batch_size', did you mean 'train.sequences_per_step'? "
       "(longshore config keys train)"},
      {"[adapter]\nuse_dora = true",
       "run.toml:2:1: unknown key 'adapter.use_dora', did you mean 'adapter.kind'? (longshore "
       "config keys adapter)"},
      {"[adapter]\nlora_alpha = 4",
       "run.toml:2:1: unknown key 'adapter.lora_alpha', did you mean 'adapter.alpha'? (longshore "
       "config keys adapter)"},
      {"[adapter]\nlora_dropout = 0.1",
       "run.toml:2:1: unknown key 'adapter.lora_dropout', did you mean 'adapter.dropout'? "
       "(longshore config keys adapter)"},
      {"lr = 1.0",
       "run.toml:1:1: key 'lr' stands outside of a section, did you mean 'optimizer.lr'? "
       "(longshore config keys)"},
      {"speed = 1.0",
       "run.toml:1:1: key 'speed' stands outside of a section (longshore config keys)"},
      {"[fsdp.prefetching]\nunits = 1",
       "run.toml:1:7: unknown key 'fsdp.prefetching', did you mean 'prefetch'? (longshore config "
       "keys fsdp)"},
      {"[log]\n\"a\\nb\\u0000\" = 1",
       "run.toml:2:1: unknown key 'log.a\\x0ab\\x00' (longshore config keys log)"},
  });
}

// A section that is no table is refused.
TEST_F(RunFileErrors, SectionsAreTables) {
  expect_each({
      {"log = 3", "run.toml:1:1: expected the section [log], found the integer 3"},
      {"[[log]]\nevery_steps = 1", "run.toml:1:3: expected the section [log], found an array of 1"},
  });
}

// A value of another type is refused with both types.
TEST_F(RunFileErrors, TypesAreStrict) {
  expect_each({
      {"[train]\nmicro_batch = \"1\"",
       "run.toml:2:15: train.micro_batch: expected an integer or \"auto\", found the string \"1\""},
      {"[train]\nmicro_batch = 1.0",
       "run.toml:2:15: train.micro_batch: expected an integer or \"auto\", found the real 1"},
      {"[train]\nmicro_batch = [1]",
       "run.toml:2:15: train.micro_batch: expected an integer or \"auto\", found an array of 1"},
      {"[train]\nmicro_batch = 2024-01-01",
       "run.toml:2:15: train.micro_batch: expected an integer or \"auto\", found a date or time"},
      {"[data]\npacking = 1",
       "run.toml:2:11: data.packing: expected true or false, found the integer 1"},
      {"[data]\npacking = \"true\"",
       "run.toml:2:11: data.packing: expected true or false, found the string \"true\""},
      {"[optimizer]\nlr = \"2e-5\"",
       "run.toml:2:6: optimizer.lr: expected a number, found the string \"2e-5\""},
      {"[optimizer]\nlr = true",
       "run.toml:2:6: optimizer.lr: expected a number, found the boolean true"},
      {"[optimizer]\nlr.max = 1.0", "run.toml:2:1: optimizer.lr: expected a number, found a table"},
      {"[optimizer]\nbetas = 0.9",
       "run.toml:2:9: optimizer.betas: expected two reals such as [0.9, 0.95], found the real 0.9"},
      {"[optimizer]\nbetas = [0.9]",
       "run.toml:2:9: optimizer.betas: expected two reals such as [0.9, 0.95], found an array of "
       "1"},
      {"[optimizer]\nbetas = [0.9, \"b\"]",
       "run.toml:2:9: optimizer.betas: expected two reals such as [0.9, 0.95], found the string "
       "\"b\""},
      {"[offload]\nthreads = \"all\"",
       "run.toml:2:11: offload.threads: expected an integer or \"auto\", found the string "
       "\"all\""},
      {"[data]\neval = \"e.jsonl\"",
       "run.toml:2:8: data.eval: expected a list of paths, found the string \"e.jsonl\"; write "
       "[\"e.jsonl\"]"},
      {"[data]\neval = [1]",
       "run.toml:2:8: data.eval: expected a path in the list, found the integer 1"},
      {"[train]\nfreeze = {}",
       "run.toml:2:10: train.freeze: expected a list of strings, found a table"},
      {"[checkpoint]\nresume = true",
       "run.toml:2:10: checkpoint.resume: expected a path, found the boolean true"},
  });
}

// Numbers outside their bounds are refused with the bounds.
TEST_F(RunFileErrors, NumbersKeepTheirBounds) {
  expect_each({
      {"[run]\nseed = -1", "run.toml:2:8: run.seed = -1: must be at least 0"},
      {"[fsdp]\nprefetch = 9", "run.toml:2:12: fsdp.prefetch = 9: must be from 0 to 8"},
      {"[train]\nmicro_batch = 0", "run.toml:2:15: train.micro_batch = 0: must be from 1 to 65536"},
      {"[optimizer]\nlr = -1e-5", "run.toml:2:6: optimizer.lr = -1e-5: must be at least 0"},
      {"[optimizer]\nlr = 1e308",
       "run.toml:2:6: optimizer.lr = 1e+308 leaves fp32 with optimizer.weight_decay = 0.0 "
       "(default): a learning rate, and its product with the weight decay, may be at most 1e38"},
      {"[optimizer]\nlr = 1e-3\nweight_decay = 1e300",
       "run.toml:2:6: optimizer.lr = 0.001 leaves fp32 with optimizer.weight_decay = 1e+300 "
       "(run.toml:3:16): a learning rate, and its product with the weight decay, may be at most "
       "1e38"},
      {"[optimizer]\nlr = nan",
       "run.toml:2:6: optimizer.lr: expected a finite real, found the "
       "real nan"},
      {"[optimizer]\nlr = inf",
       "run.toml:2:6: optimizer.lr: expected a finite real, found the "
       "real inf"},
      {"[optimizer]\neps = 0", "run.toml:2:7: optimizer.eps = 0.0: must be above 0"},
      {"[adapter]\ndropout = 1.0",
       "run.toml:2:11: adapter.dropout = 1.0: must be at least 0 and below 1"},
      {"[adapter]\nlayers = [0, -1]",
       "run.toml:2:10: adapter.layers = -1: must be from 0 to 1000000"},
      {"[adapter]\nrank_pattern = { \"q_proj\" = 0 }",
       "run.toml:2:16: adapter.rank_pattern.\"q_proj\" = 0.0: must be from 1 to 4096"},
      {"[adapter]\nrank_pattern = { mlp.up_proj = 4 }",
       "run.toml:2:16: adapter.rank_pattern.\"mlp\" is a table; write a pattern with dots in "
       "quotes"},
      {"[adapter]\nkind = \"lora\"\nrank_pattern = { \"q_proj\" = 4.5 }",
       "run.toml:3:16: adapter.rank_pattern: the rank of \"q_proj\" must be an integer"},
      {"[optimizer]\nbetas = [0.9, 1.0]",
       "run.toml:2:9: optimizer.betas = [0.9, 1.0]: each must be at least 0 and below 1"},
      {"[schedule]\nmin_lr_ratio = 1.5",
       "run.toml:2:16: schedule.min_lr_ratio = 1.5: must be from 0 to 1"},
      {"[device]\nthreads = 0", "run.toml:2:11: device.threads = 0: must be from 1 to 256"},
      {"[offload]\nhost_memory = \"0B\"",
       "run.toml:2:15: offload.host_memory = \"0B\": must be at least 1"},
  });
}

// A size without a unit is refused.
TEST_F(RunFileErrors, SizesNeedUnits) {
  const std::string expected =
      "run.toml:2:17: offload.device_memory: expected a size with a unit such as \"24GiB\", or "
      "\"auto\", found ";
  for (const auto& [value, found] : std::vector<std::pair<std::string, std::string>>{
           {"24", "the integer 24"},
           {"1.5", "the real 1.5"},
           {"\"24\"", "the string \"24\""},
           {"\"24 gigabytes\"", "the string \"24 gigabytes\""},
           {"\"-1GiB\"", "the string \"-1GiB\""},
           {"\"99999999TiB\"", "the string \"99999999TiB\""}}) {
    EXPECT_EQ(problems_beside_needed("[offload]\ndevice_memory = " + value), expected + found);
  }
}

// A wrong choice is refused with the list of choices.
TEST_F(RunFileErrors, ChoicesSayWhatTheyAllow) {
  expect_each({
      {"[offload]\nstate_format = \"split-fp8\"",
       "run.toml:2:16: offload.state_format: expected \"fp32\", \"split\", \"split-bf16\" or "
       "\"split-int8\", found the string \"split-fp8\", did you mean \"split-bf16\"?"},
      {"[offload]\noptimizer = \"disk\"",
       "run.toml:2:13: offload.optimizer: expected \"host\" or \"nvme\", found the string "
       "\"disk\", did you mean \"nvme\"?"},
      {"[optimizer]\nname = \"paged_adamw_8bit\"",
       "run.toml:2:8: optimizer.name: expected \"adamw\", found the string \"paged_adamw_8bit\", "
       "did you mean \"adamw\"? Its moments have 8 bits with offload.state_format = "
       "\"split-int8\""},
      {"[fsdp]\nstrategy = \"zero3\"",
       "run.toml:2:12: fsdp.strategy: expected \"full_shard\", \"shard_grad_op\", \"hybrid_shard\" "
       "or "
       "\"no_shard\", found the string \"zero3\""},
      {"[data]\nformat = \"token\"",
       "run.toml:2:10: data.format: expected \"auto\", \"text\", \"tokens\", "
       "\"prompt-completion\", \"messages\", \"preference\", \"unpaired-preference\", "
       "\"policy\" or \"distill\", found the string \"token\", did you mean \"tokens\"?"},
      {"[fsdp]\nrecompute = \"full\"",
       "run.toml:2:13: fsdp.recompute: expected \"unit\", \"except-attention\", \"except-heads\", "
       "\"except-middle\", \"except-mlp\", \"none\" or "
       "\"auto\", found the string \"full\""},
      {"[fsdp]\nunits = { min_parameters = 0 }",
       "run.toml:2:9: fsdp.units.min_parameters = 0: must be at least 1"},
      {"[fsdp]\nunits = { sizes = 3 }",
       "run.toml:2:9: fsdp.units: expected \"block\", \"half\", \"piece\", \"auto\", { rows = N }, "
       "{ classes = [...] }, { min_parameters = N } or "
       "{ groups = [[...], ...] }, found a table with 'sizes'"},
      {"[schedule]\nname = 3",
       "run.toml:2:8: schedule.name: expected \"constant\", \"linear\", \"cosine\", "
       "\"cosine_with_restarts\", \"polynomial\", \"inverse_sqrt\" or \"wsd\", found the integer "
       "3"},
  });
}

// Strings that name something may not be empty or contain a NUL.
TEST_F(RunFileErrors, StringsThatNameSomethingAreNotEmpty) {
  expect_each({
      {"[checkpoint]\nresume = \"\"",
       "run.toml:2:10: checkpoint.resume: expected a path, found \"\""},
      {"[train]\nfreeze = [\"a\", \"\"]",
       "run.toml:2:10: train.freeze: expected a string in the list, found \"\""},
      {"[checkpoint]\nresume = \"a\\u0000b\"",
       "run.toml:2:10: checkpoint.resume: the string holds a NUL"},
  });
}

// Contradicting keys are refused with the positions of both.
TEST_F(RunFileErrors, KeysThatContradictEachOtherShowBothPlaces) {
  expect_each({
      {"[adapter]\nr = 4",
       "run.toml:2:5: adapter.r has no effect, because adapter.kind = \"none\" (default); set "
       "adapter.kind = \"lora\""},
      {"[adapter]\ndropout = 0.1",
       "run.toml:2:11: adapter.dropout has no effect, because adapter.kind = \"none\" (default); "
       "set adapter.kind = \"lora\""},
      {"[adapter]\npath = \"a\"", "accepted"},
      {"[adapter]\nkind = \"none\"\npath = \"a\"",
       "run.toml:3:8: adapter.path has no effect, because adapter.kind = \"none\" (run.toml:2:8); "
       "set adapter.kind = \"lora\""},
      {"[adapter]\nkind = \"lora\"\nany_base = true",
       "run.toml:3:12: adapter.any_base = true has no effect with adapter.path = \"new\" "
       "(default): "
       "a new adapter belongs to no other model"},
      {"[adapter]\npath = \"a\"\nany_base = true", "accepted"},
      {"[adapter]\nkind = \"lora\"\ntargets = []",
       "run.toml:3:11: adapter.targets = [] names nothing to adapt, but adapter.kind = \"lora\" "
       "(run.toml:2:8)"},
      {"[adapter]\nkind = \"lora\"\n[train]\nfreeze = [\"*.bias\"]",
       "run.toml:4:10: train.freeze = [\"*.bias\"] has no effect with adapter.kind = \"lora\" "
       "(run.toml:2:8), which freezes the whole model; adapter.train names what is trained as "
       "well"},
      {"[offload]\nparameters = \"files\"",
       "run.toml:2:14: offload.parameters = \"files\" needs frozen parameters, but adapter.kind = "
       "\"none\" (default): set adapter.kind = \"lora\", or name parameters in train.freeze"},
      {"[offload]\nparameters = \"files\"\noptimizer = \"nvme\"\nnvme = [\"d\"]\n[train]\nfreeze = "
       "[\"a\"]",
       "run.toml:2:14: offload.parameters = \"files\" keeps what is trained in host memory, but "
       "offload.optimizer = \"nvme\" (run.toml:3:13): set offload.optimizer = \"host\""},
      {"[offload]\nparameters = \"files\"\n[adapter]\nkind = \"lora\"\n[model]\ninit = \"random\"",
       "run.toml:2:14: offload.parameters = \"files\" needs the weights of the model's files, but "
       "model.init = \"random\" (run.toml:6:8)"},
      {"[offload]\nparameters = \"files\"\n[adapter]\nkind = \"lora\"\n[fsdp]\ngather = \"host\"",
       "run.toml:2:14: offload.parameters = \"files\" has no shards in memory to copy, but "
       "fsdp.gather = \"host\" (run.toml:6:10): set fsdp.gather = \"auto\""},
      {"[checkpoint]\nexport = \"merged\"",
       "run.toml:2:10: checkpoint.export = \"merged\" needs adapters, but adapter.kind = \"none\" "
       "(default)"},
      {"[train]\nepochs = 2",
       "needed.toml:4:15: train.steps = 10 and train.epochs = 2.0 (run.toml:2:10): give one of "
       "them, "
       "or set the other to 0"},
      {"[train]\nmicro_batch = 9",
       "run.toml:2:15: train.micro_batch = 9 is more than train.sequences_per_step = 8 (default)"},
      {"[train]\nsequences_per_step = 3\nmicro_batch = 4",
       "run.toml:3:15: train.micro_batch = 4 is more than train.sequences_per_step = 3 "
       "(run.toml:2:22)"},
      {"[schedule]\nwarmup_steps = 10\nwarmup_ratio = 0.1",
       "run.toml:3:16: schedule.warmup_ratio = 0.1 is the length of the warm-up, and "
       "schedule.warmup_steps = 10 (run.toml:2:16); leave one of the two out, or set it to 0"},
      {"[schedule]\nname = \"wsd\"",
       "run.toml:2:8: schedule.name = \"wsd\" needs a fall at the end, but schedule.decay_steps = "
       "0 (default): set schedule.decay_steps"},
      {"[schedule]\nname = \"wsd\"\ndecay_steps = 8\nwarmup_steps = 3",
       "run.toml:3:15: schedule.decay_steps = 8 and schedule.warmup_steps = 3 (run.toml:4:16) are "
       "together more than train.steps = 10 (needed.toml:4:15)"},
  });
}

// Contradicting keys of data, evaluation and losses are refused with the positions of both.
TEST_F(RunFileErrors, KeysOfDataThatContradictEachOtherShowBothPlaces) {
  expect_each({
      {"[eval]\nevery_steps = 5",
       "run.toml:2:15: eval.every_steps = 5 needs files to evaluate on, but data.eval = [] "
       "(default): name some, or set eval.sets or eval.split"},
      {"[eval]\nsplit = 0.1\n[data]\neval = [\"e.jsonl\"]",
       "run.toml:2:9: eval.split = 0.1 holds out a part of data.train, but data.eval = "
       "[\"e.jsonl\"] (run.toml:4:8): choose one of the two"},
      {"[eval]\npatience = 2",
       "run.toml:2:12: eval.patience = 2 needs evaluations during the run, but eval.every_steps = "
       "0 "
       "(default)"},
      {"[data]\nweights = [1, 2]",
       "run.toml:2:11: data.weights = [1.0, 2.0] needs one number for each file, but data.train = "
       "[\"t\"] (needed.toml:3:14)"},
      {"[data]\nmix = \"exhaust\"\nprobabilities = [0.5, 0.5]",
       "run.toml:3:17: data.probabilities = [0.5, 0.5] needs one number for each file, but "
       "data.train = [\"t\"] (needed.toml:3:14)"},
      {"[data]\nprobabilities = [1]",
       "run.toml:2:17: data.probabilities = [1.0] has no effect with data.mix = \"concat\" "
       "(default): set it to \"exhaust\" or \"restart\""},
      {"[data]\nmix = \"restart\"\nprobabilities = [0.9]",
       "run.toml:3:17: data.probabilities = [0.9]: their sum is 0.9; it must be 1, to within "
       "0.005"},
      {"[data]\nmix = \"restart\"\nweights = [2]",
       "run.toml:3:11: data.weights = [2.0] says how often files are read, and so does data.mix = "
       "\"restart\" (run.toml:2:7): choose one of the two"},
      {"[preference]\nlabel_smoothing = 0.4999\n[train]\nloss = \"dpo-robust\"",
       "run.toml:4:8: train.loss = \"dpo-robust\" divides by 1 - 2 preference.label_smoothing, and "
       "preference.label_smoothing = 0.4999 (run.toml:2:19): set it to 0.49 at most"},
  });
}

// An SFT term goes with losses over pairs that have none yet; others are refused with the reason.
TEST_F(RunFileErrors, AnSftTermThatTheLossCannotHaveIsRefused) {
  expect_each({
      {"[preference]\nsft_weight = 0.5",
       "run.toml:2:14: preference.sft_weight = 0.5 has no effect on train.loss = \"sft\" "
       "(default): leave it out"},
      {"[preference]\nsft_weight = 0.5\n[train]\nloss = \"orpo\"",
       "run.toml:2:14: preference.sft_weight = 0.5 does not go with train.loss = \"orpo\" "
       "(run.toml:4:8), whose first term is an SFT loss already: set preference.sft_weight = 0, or "
       "change preference.beta, the weight of its other term"},
      {"[preference]\nsft_weight = 0.5\n[train]\nloss = \"kto\"",
       "run.toml:2:14: preference.sft_weight = 0.5 does not go with train.loss = \"kto\" "
       "(run.toml:4:8), whose rows are no pairs with a chosen answer: set preference.sft_weight = "
       "0"},
  });
}

// A contradiction names the argument or file that the value came from.
TEST_F(RunFileErrors, ContradictionsShowTheArgumentOrTheFileThatWon) {
  EXPECT_EQ(problems(kNeeded, {{"train.epochs", "1"}, {"train.steps", "10"}}),
            "--train.steps: train.steps = 10 and train.epochs = 1.0 (--train.epochs): give one of "
            "them, or set the other to 0");
  EXPECT_EQ(problems(kNeeded, {{"train.micro_batch", "9"}}),
            "--train.micro_batch: train.micro_batch = 9 is more than train.sequences_per_step = 8 "
            "(default)");
  EXPECT_EQ(problems(kNeeded, {{"train.epochs", "1"}, {"train.steps", "0"}}), "accepted");
  EXPECT_EQ(problems(kNeeded, {{"train.sequences_per_step", "1"}}), "accepted");
}

// Every missing key is named with a line to add.
TEST_F(RunFileErrors, WhatIsMissingSaysWhatToAdd) {
  EXPECT_EQ(problems(""),
            "run.toml: run.dir is missing: add dir = \"runs/tiny\" under [run]\n"
            "run.toml: model.path is missing: add path = \"models/tiny-llama\" under [model]\n"
            "run.toml: data.train is missing: add train = [\"train.jsonl\"] under [data]\n"
            "run.toml: the length of the run is missing: add steps = 100 or epochs = 1 under "
            "[train]");
  EXPECT_EQ(problems(kNeeded, {{"data.train", "[]"}}),
            "--data.train: data.train is empty: add train = [\"train.jsonl\"] under [data]");
}

// Errors of TOML's syntax have line and column.
TEST_F(RunFileErrors, TomlErrorsHaveTheirPlace) {
  EXPECT_EQ(problems("[run]\ndir = runs/x\n").rfind("run.toml:2:7: not TOML: ", 0), 0u)
      << problems("[run]\ndir = runs/x\n");
  EXPECT_EQ(problems("[run\n").rfind("run.toml:1:5: not TOML: ", 0), 0u) << problems("[run\n");
  EXPECT_EQ(problems("[run]\nd\xc3\xa9 = 1"),
            "run.toml:2:2: not TOML: error while parsing key-value pair: expected '=', saw "
            "'\xc3\xa9'");
  for (const char* text :
       {"[run]\nseed = 1\nseed = 2", "[run]\nseed = 01", "[run]\ndir = \"a\nb\"", "= 1",
        "[run]\nseed = 9223372036854775808", "[run]\n[run]\n", "run.seed = 1\nrun = 2", "\xff = 1",
        "x = \"\xc3\x28\"", "[run]\nseed = 1 dir = 2", "[run]\ndir = \"\\q\"", "{\"run\": 1}"}) {
    const std::string problem = problems(text);
    EXPECT_EQ(problem.rfind("run.toml:", 0), 0u) << problem;
    EXPECT_NE(problem.find(": not TOML: "), std::string::npos) << problem;
    EXPECT_EQ(problem.find('\n'), std::string::npos) << problem;
  }
}

// A wrong override is named by its argument.
TEST_F(RunFileErrors, WrongOverridesNameTheArgument) {
  for (const auto& [said, problem] : std::vector<std::pair<Override, std::string>>{
           {{"optimizer.weigth_decay", "1"},
            "--optimizer.weigth_decay: unknown key 'optimizer.weigth_decay', did you mean "
            "'weight_decay'? (longshore config keys optimizer)"},
           {{"ofload.threads", "1"},
            "--ofload.threads: unknown section 'ofload', did you mean 'offload'? (longshore config "
            "keys)"},
           {{"train.micro_batch", "many"},
            "--train.micro_batch: train.micro_batch: expected an integer or \"auto\", found the "
            "string "
            "\"many\""},
           {{"train.micro_batch", ""},
            "--train.micro_batch: train.micro_batch: expected an integer or \"auto\", found the "
            "string \"\""},
           {{"offload.host_memory", "24"},
            "--offload.host_memory: offload.host_memory: expected a size with a unit such as "
            "\"24GiB\", or \"auto\", found the string \"24\""},
           {{"data.packing", "1\ntrue = 2"},
            "--data.packing: data.packing: expected true or false, found the string \"1\\ntrue = "
            "2\""},
           {{"fsdp", "1"}, "--fsdp: expected --section.key=value"},
           {{"data.train.x", "1"},
            "--data.train.x: unknown key 'data.train.x', did you mean 'train'? (longshore config "
            "keys data)"}}) {
    EXPECT_EQ(problems(kNeeded, {said}), problem);
  }
}

// A file that cannot be read is named with its absolute path.
TEST_F(RunFileErrors, FilesThatCannotBeReadAreNamedWithTheirAbsolutePath) {
  EXPECT_THROW(load_run_config({"absent.toml"}, {}), ConfigError);
  try {
    load_run_config({"absent.toml"}, {});
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()), "open absent.toml: No such file or directory (" +
                                             std::filesystem::absolute("absent.toml").string() +
                                             ")");
  }
  EXPECT_EQ(problems(std::string(2 * kMiB, '\n')), "run.toml: longer than the limit of 1.0 MiB");
}

// Problems of all files and arguments are reported together.
TEST_F(RunFileErrors, AllProblemsOfAllFilesAndArgumentsComeTogether) {
  write("a.toml", "[run]\nseed = -1\n[x]\n");
  write("b.toml", "[train]\nsteps = \"a\"\nmicro_batch = 9\n");
  std::vector<std::string> found;
  try {
    load_run_config({"a.toml", "b.toml"}, {{"log.every", "1"}});
  } catch (const ConfigError& error) {
    found = error.problems();
  }
  ASSERT_EQ(found.size(), 8u);
  EXPECT_EQ(found[0], "a.toml:2:8: run.seed = -1: must be at least 0");
  EXPECT_EQ(found[1], "a.toml:3:2: unknown section 'x' (longshore config keys)");
  EXPECT_EQ(found[2], "b.toml:2:9: train.steps: expected an integer, found the string \"a\"");
  EXPECT_EQ(found[3], "--log.every: unknown key 'log.every' (longshore config keys log)");
  EXPECT_EQ(found[4], "a.toml: run.dir is missing: add dir = \"runs/tiny\" under [run]");
  // train.steps is wrong already, so no problem about the length of the run is added.
  EXPECT_EQ(found[7],
            "b.toml:3:15: train.micro_batch = 9 is more than train.sequences_per_step = 8 "
            "(default)");
}

}  // namespace
}  // namespace longshore
