// Every key of the run file does something: each is changed alone, and the change is seen in a run
// of two steps, in the plan, or in a refusal. The keys come from the table of keys.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "config/field_table.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/looker.h"

namespace longshore {
namespace {

// Change: a value of a key that must be seen, beside settings of both runs. `$` is the directory.
struct Change {
  std::string value;
  Arguments both = {};
  Sight sight = Sight::kRun;
};

const Arguments kLora = {"adapter.kind=lora"};
const Arguments kTwoFiles = {"data.train=[\"$/rows.jsonl\", \"$/other.jsonl\"]",
                             "data.shuffle=false"};
const Arguments kChat = {"data.train=[\"$/chat.jsonl\"]", "data.chat_template=$/one.jinja",
                         "data.max_tokens=512"};
const Arguments kPairs = {"data.train=[\"$/pairs.jsonl\"]", "train.loss=dpo"};
const Arguments kJudged = {"data.train=[\"$/pairs.jsonl\"]", "train.loss=kto"};
const Arguments kPolicy = {"data.train=[\"$/policy.jsonl\"]", "train.loss=policy"};
const Arguments kTeacher = {"data.train=[\"$/teacher.jsonl\"]", "train.loss=distill"};
const Arguments kMargin = {"data.train=[\"$/pairs.jsonl\"]", "train.loss=simpo"};
const Arguments kExperts = {"model.path=$/experts"};
const Arguments kPacked = {"model.path=$/packed", "data.train=[\"$/tokens.jsonl\"]",
                           "checkpoint.export=end"};
const Arguments kCorrected = {"model.path=$/corrected"};
const Arguments kEval = {"data.eval=[\"$/other.jsonl\"]", "eval.every_steps=1",
                         "eval.max_new_tokens=4"};
const Arguments kPrompt = joined(kEval, {"eval.prompts=[\"a\"]"});
const Arguments kDrive = {"offload.optimizer=nvme", "offload.nvme=[\"$/drive\"]"};

const std::map<std::string, Change> kChanges = {
    {"run.dir", {"$/elsewhere"}},
    {"run.seed", {"7"}},
    {"run.on_end", {R"(["sh", "-c", "touch $/run/ended"])"}},
    {"run.on_end_limit", {"100ms", {R"(run.on_end=["sh", "-c", "sleep 1 && touch $/run/ended"])"}}},
    {"model.path", {"$/model2"}},
    {"model.init", {"random", {"model.path=$/model2"}}},
    {"adapter.kind", {"lora"}},
    {"adapter.base", {"nf4", kLora}},
    {"adapter.r", {"4", kLora}},
    {"adapter.alpha", {"32.0", kLora}},
    {"adapter.rslora", {"true", kLora}},
    {"adapter.dropout", {"0.5", kLora}},
    {"adapter.targets", {"[\"q_proj\"]", kLora}},
    {"adapter.exclude", {"[\"q_proj\"]", kLora}},
    {"adapter.layers", {"[0]", kLora}},
    {"adapter.rank_pattern", {"{ \"q_proj\" = 2 }", kLora}},
    {"adapter.alpha_pattern", {"{ \"q_proj\" = 64 }", kLora}},
    {"adapter.train", {"[\"lm_head\"]", kLora}},
    {"adapter.bias", {"lora_only", kLora}},
    {"adapter.path", {"$/absent", kLora}},
    {"tokenizer.path", {"$/absent"}},
    {"tokenizer.add_tokens", {"[\"row of\"]"}},
    {"tokenizer.add_special_tokens", {"[\"row of\"]"}},
    {"data.train", {"[\"$/other.jsonl\"]"}},
    {"data.eval", {"[\"$/other.jsonl\"]"}},
    {"data.format", {"messages"}},
    {"data.mask", {"last", kChat}},
    {"data.weights", {"[0.5]"}},
    {"data.mix", {"restart", kTwoFiles}},
    {"data.probabilities", {"[0.9, 0.1]", joined(kTwoFiles, {"data.mix=exhaust"})}},
    {"data.max_rows", {"2"}},
    {"data.keys", {"{ text = \"absent\" }"}},
    {"data.prompt_template",
     {"plain", {"data.train=[\"$/prompts.jsonl\"]", "data.max_tokens=512"}}},
    {"data.chat_template", {"$/two.jinja", kChat}},
    {"data.template_arguments", {"{ mark = \"!\" }", kChat}},
    {"data.date", {"2025-01-01", kChat}},
    {"data.max_tokens", {"8"}},
    {"data.packing", {"true"}},
    {"data.shuffle", {"false"}},
    {"data.overlength", {"truncate", {"data.max_tokens=8"}}},
    {"data.bad_rows", {"skip", {"data.train=[\"$/bad.jsonl\"]"}}},
    {"data.special_tokens", {"error", {"data.train=[\"$/special.jsonl\"]"}}},
    {"data.add_eos", {"false"}},
    {"data.cache", {"$/rows.jsonl/cache"}},
    {"data.cache_limit", {"1B", {}, Sight::kCacheFiles}},
    {"data.threads", {"3", {}, Sight::kThreads}},
    {"train.steps", {"3"}},
    {"train.epochs", {"1.0", {"train.epochs=0.5"}}},
    {"train.sequences_per_step", {"3"}},
    {"train.micro_batch", {"2"}},
    {"train.max_grad_norm", {"0.01"}},
    {"train.freeze", {"[\"*embed*\"]"}},
    {"train.router_aux_loss", {"0.5", kExperts}},
    {"train.router_correction_rate", {"0.5", kCorrected}},
    {"train.max_nonfinite_steps", {"1", {"optimizer.lr=1e38", "train.steps=6"}}},
    {"train.loss", {"ipo", kPairs}},
    {"preference.beta", {"0.5", kPairs}},
    {"preference.label_smoothing", {"0.2", kPairs}},
    {"preference.gamma", {"1.5", kMargin}},
    {"preference.sft_weight", {"0.5", kPairs}},
    {"preference.desirable_weight", {"2.0", kJudged}},
    {"preference.undesirable_weight", {"2.0", kJudged}},
    {"preference.reference", {"$/model2", kPairs}},
    {"policy.clip_low", {"0.01", kPolicy}},
    {"policy.clip_high", {"0.01", kPolicy}},
    {"distill.top_k", {"1", kTeacher}},
    {"distill.temperature", {"2", kTeacher}},
    {"distill.ce_weight", {"0.5", kTeacher}},
    {"optimizer.lr", {"0.02"}},
    {"optimizer.betas", {"[0.5, 0.6]"}},
    {"optimizer.eps", {"0.1"}},
    {"optimizer.weight_decay", {"0.5"}},
    {"optimizer.decay", {"all", {"optimizer.weight_decay=5.0"}}},
    {"optimizer.groups", {"[{ parameters = [\"*\"], lr = 0.5 }]"}},
    {"optimizer.overlap", {"backward", {"train.max_grad_norm=0.0"}}},
    {"schedule.name", {"constant"}},
    {"schedule.warmup_steps", {"2"}},
    {"schedule.warmup_ratio", {"0.5"}},
    {"schedule.min_lr_ratio", {"0.5"}},
    {"schedule.cycles", {"2", {"schedule.name=cosine_with_restarts"}}},
    {"schedule.power", {"2.0", {"schedule.name=polynomial"}}},
    {"schedule.timescale", {"5", {"schedule.name=inverse_sqrt"}}},
    {"schedule.decay_steps", {"2", {"schedule.name=wsd", "schedule.decay_steps=1"}}},
    {"schedule.decay_type", {"1-sqrt", {"schedule.name=wsd", "schedule.decay_steps=2"}}},
    {"precision.compute", {"bf16"}},
    {"precision.reduce", {"bf16", {}, Sight::kRanks}},
    {"precision.drain", {"bf16"}},
    {"fsdp.strategy", {"no_shard", {}, Sight::kRanks}},
    {"fsdp.shard_ranks", {"1", {"fsdp.strategy=hybrid_shard"}, Sight::kRanks}},
    {"fsdp.units", {"half"}},
    {"fsdp.prefetch", {"0"}},
    {"fsdp.recompute", {"none"}},
    {"fsdp.gather", {"host", {}, Sight::kRanks}},
    {"offload.parameters", {"files"}},
    {"offload.optimizer", {"nvme", {"offload.nvme=[\"$/drive\"]"}}},
    {"offload.activations", {"host"}},
    {"offload.state_format", {"fp32"}},
    {"offload.nvme", {"[]", kDrive}},
    {"offload.nvme_versions", {"1", kDrive}},
    {"offload.nvme_tbw", {"1GB", kDrive}},
    {"offload.device_memory", {"1KiB"}},
    {"offload.host_memory", {"1KiB"}},
    {"offload.pinned_memory", {"0B", {}, Sight::kGpus}},
    {"offload.threads", {"2"}},
    {"checkpoint.every_steps", {"1", {"train.steps=4"}}},
    {"checkpoint.keep", {"1", {"checkpoint.every_steps=1", "train.steps=3"}}},
    {"checkpoint.resume", {"$/absent"}},
    {"checkpoint.export", {"end"}},
    {"checkpoint.export_format", {"published", kPacked}},
    {"eval.sets", {"{ other = \"$/other.jsonl\" }"}},
    {"eval.every_steps", {"2", kEval}},
    {"eval.sequences", {"1", kEval}},
    {"eval.split", {"0.3"}},
    {"eval.keep_best", {"true", kEval}},
    {"eval.patience", {"1", joined(kEval, {"optimizer.lr=1.0", "train.steps=4"})}},
    {"eval.prompts", {"[\"a\"]", kEval}},
    {"eval.prompt_format", {"messages", kPrompt}},
    {"eval.max_new_tokens", {"1", kPrompt}},
    {"device.kind", {"cuda"}},
    {"device.threads", {"2"}},
    {"dist.backend", {"nccl"}},
    {"log.every_steps", {"2"}},
    {"log.tensorboard", {"true"}},
    {"log.router", {"true", kExperts}}};

// Keys with one value, each with another that is refused.
const std::map<std::string, std::string> kOneValue = {{"optimizer.name", "sgd"}};

// Keys that the file of another test sets.
const std::map<std::string, std::string> kOtherTests = {
    {"adapter.any_base", "parity/base_identity_test.cpp"},
    {"dist.timeout", "parity/stranger_test.cpp"},
    {"dist.secret_file", "parity/stranger_test.cpp"},
    {"log.wandb", "parity/tracker_test.cpp"}};

void expect_one_value(const Looker& looker, const Key& key) {
  EXPECT_EQ(key.choices.size(), 1u) << key.full_name() << " has other values by now";
  const std::string setting = key.full_name() + "=" + kOneValue.at(key.full_name());
  EXPECT_TRUE(looker.look(Sight::kRun, {setting}).text.starts_with("2\n")) << setting;
}

void expect_set_in_test(const std::string& key) {
  const std::string& file = kOtherTests.at(key);
  EXPECT_NE(text_of_file(test_data() + "/" + file).find("--" + key + "="), std::string::npos)
      << file << " does not set " << key;
}

// Goal: no key is accepted and read by nothing. A new key needs an entry above; an entry needs a
// change that shows.
TEST(EveryKey, ShowsInARunOrAPlanOrIsRefused) {
  const Looker looker("every-key");
  std::map<Arguments, Seen> seen;  // of the settings of both runs
  for (const Sight sight : {Sight::kRun, Sight::kRanks}) {
    ASSERT_EQ(looker.look(sight, {}).text, looker.look(sight, {}).text) << "looks are comparable";
  }
  size_t keys = 0;
  for (const Section& section : run_file_sections()) {
    for (const Key& key : section.keys) {
      ++keys;
      const std::string name = key.full_name();
      if (kOneValue.contains(name)) {
        expect_one_value(looker, key);
        continue;
      }
      if (kOtherTests.contains(name)) {
        expect_set_in_test(name);
        continue;
      }
      const auto found = kChanges.find(name);
      if (found == kChanges.end()) {
        ADD_FAILURE() << name << ": add a change that shows what the key does";
        continue;
      }
      const auto& [value, both, sight] = found->second;
      const std::string setting = name + "=" + value;
      Arguments place = both;
      place.push_back("at " + std::to_string(static_cast<int>(sight)));
      if (!seen.contains(place)) seen[place] = looker.look(sight, both);
      EXPECT_NE(looker.look(sight, joined(both, {setting})).text, seen[place].text)
          << setting << " changes nothing";
    }
  }
  EXPECT_EQ(kChanges.size() + kOneValue.size() + kOtherTests.size(), keys)
      << "an entry names no key";
}

}  // namespace
}  // namespace longshore
