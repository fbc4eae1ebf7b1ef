// Every key of the run file does something: each is changed alone, and the change is seen in a run
// of two steps, in the plan, or in a refusal. The keys come from the table of keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "config/field_table.h"
#include "config/run_config.h"
#include "tests/fakes/command_run.h"
#include "tests/fakes/test_files.h"
#include "tests/parity/run_driver.h"
#include "trainer/data/run_prepare.h"
#include "trainer/directory/metrics_reader.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Sight: where the change of a key is seen.
enum class Sight : uint8_t {
  kRun,         // losses, events, plan, files, exit code of `train`
  kRanks,       // the plan of four ranks on two nodes
  kCacheFiles,  // the files that `prepare` leaves in the cache
  kThreads,     // the options that data are prepared with
  kOneValue,    // the key has one value, and any other is refused
  kOtherTest,   // the value is the file of a test that sets the key
};

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
    {"optimizer.name", {"sgd", {}, Sight::kOneValue}},
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
    {"offload.threads", {"2"}},
    {"checkpoint.every_steps", {"1", {"train.steps=4"}}},
    {"checkpoint.keep", {"1", {"checkpoint.every_steps=1", "train.steps=3"}}},
    {"checkpoint.resume", {"$/absent"}},
    {"checkpoint.export", {"end"}},
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
    {"dist.timeout", {"parity/stranger_test.cpp", {}, Sight::kOtherTest}},
    {"dist.backend", {"nccl"}},
    {"dist.secret_file", {"parity/stranger_test.cpp", {}, Sight::kOtherTest}},
    {"log.every_steps", {"2"}},
    {"log.tensorboard", {"true"}},
    {"log.wandb", {"parity/tracker_test.cpp", {}, Sight::kOtherTest}},
    {"log.router", {"true", kExperts}}};

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Looker: runs with settings and describes what is seen. Settings are those of `base`, then more.
class Looker {
 public:
  Looker() : directory_(scratch_directory("every-key")) {
    fs::create_directories(directory_);
    for (const auto& [preset, name, seed] :
         {std::array{"tiny-llama", "model", "42"}, std::array{"tiny-llama", "model2", "5"},
          std::array{"tiny-mixtral", "experts", "42"},
          std::array{"tiny-glm4-moe", "corrected", "42"}}) {
      EXPECT_EQ(
          run_command({"init-model", "--preset", preset, "--seed", seed, path(name)}).exit_code, 0);
    }
    write_rows("rows.jsonl", "{\"text\": \"a row of text, number #\"}");
    write_rows("other.jsonl", "{\"text\": \"other words #\"}");
    write_rows("bad.jsonl", "{\"text\": \"a row #\"}\n{\"nothing\": #}");
    write_rows("special.jsonl", "{\"text\": \"a row <|endoftext|> #\"}");
    write_rows("prompts.jsonl",
               "{\"instruction\": \"say #\", \"input\": \"c\", \"output\": \"word #\"}");
    write_rows("pairs.jsonl",
               "{\"prompt\": \"say #\", \"chosen\": \"word #\", \"rejected\": \"none\"}");
    // The first ratio is far below 1 and the second far above, and the clip holds both.
    write_rows("policy.jsonl",
               "{\"input_ids\": [5, 6, 1#], \"old_logps\": [-2, -9], \"advantages\": [-1, 1]}");
    write_rows("teacher.jsonl",
               "{\"input_ids\": [5, 6, 1#], \"teacher_ids\": [[6, 7], [8]], "
               "\"teacher_logps\": [[-1, -2], [-0.5]]}");
    const std::string turn =
        "{\"role\": \"user\", \"content\": \"q #\"}, "
        "{\"role\": \"assistant\", \"content\": \"a #\"}";
    write_rows("chat.jsonl", "{\"messages\": [" + turn + ", " + turn + "]}");
    std::ofstream(path("one.jinja"))
        << "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ mark }}{{ strftime_now('%Y') }}"
           "</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    std::ofstream(path("two.jinja"))
        << "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
           "{% if add_generation_prompt %}[assistant]{% endif %}";
    std::ofstream(path("run.toml")).close();
  }
  Looker(const Looker&) = delete;
  Looker& operator=(const Looker&) = delete;
  ~Looker() { fs::remove_all(directory_); }

  std::string look(Sight sight, const Arguments& settings) {
    switch (sight) {
      case Sight::kRanks:
        return plan_of_ranks(settings);
      case Sight::kCacheFiles:
        return cache_files(settings);
      case Sight::kThreads:
        return prepare_threads(settings);
      default:
        return run(settings);
    }
  }

 private:
  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  // Writes eight rows; `#` becomes the row's number.
  void write_rows(const std::string& name, const std::string& row) const {
    std::ofstream file(path(name));
    for (char number = '0'; number < '8'; ++number) {
      std::string text = row;
      std::ranges::replace(text, '#', number);
      file << text << "\n";
    }
  }

  Arguments command(Arguments words, const Arguments& settings) const {
    const Arguments base = {"model.path=$/model",
                            "data.train=[\"$/rows.jsonl\"]",
                            "data.cache=$/cache",
                            "data.max_tokens=64",
                            "data.packing=false",
                            "train.sequences_per_step=2",
                            "optimizer.lr=0.01",
                            "precision.compute=fp32",
                            "device.threads=1",
                            "offload.threads=1",
                            "offload.host_memory=2GiB",
                            "checkpoint.export=never",
                            "run.dir=$/run"};
    Arguments all = joined(base, settings);
    const auto of_epochs = [](const std::string& word) { return word.starts_with("train.epochs"); };
    if (std::ranges::none_of(all, of_epochs)) all.insert(all.begin(), "train.steps=2");
    for (const std::string& setting : all) {
      std::string word = "--" + setting;
      for (size_t at = word.find('$'); at != std::string::npos; at = word.find('$')) {
        word.replace(at, 1, directory_);
      }
      words.push_back(word);
    }
    return words;
  }

  static std::string described(const Ended& ended) {
    return std::to_string(ended.exit_code) + "\n" + ended.out +
           (ended.exit_code == 0 ? "" : ended.err);
  }

  std::string plan_of_ranks(const Arguments& settings) const {
    const Ended ended = run_command(command(
        {"plan", path("run.toml"), "--json", "--ranks", "4", "--ranks-per-node", "2"}, settings));
    if (ended.exit_code != 0) return described(ended);
    Json plan = Json::parse(ended.out);
    plan.erase("machine");  // the available memory changes from moment to moment
    return plan.dump();
  }

  std::string run(const Arguments& settings) {
    for (const char* name : {"run", "elsewhere", "drive"}) fs::remove_all(path(name));
    const Ended ended = run_command(command({"train", path("run.toml")}, settings));
    if (ended.exit_code != 0) return described(ended);
    const std::string name = fs::exists(path("elsewhere")) ? "elsewhere" : "run";
    std::string seen = name + "\n" + text_of_file(path(name + "/plan.txt"));
    read_metrics(path(name + "/metrics.jsonl"), {"step", "eval", "event"},
                 [&seen](const MetricsLine& line) {
                   for (const char* key : {"loss", "lr", "grad_norm", "clip_scale", "epoch",
                                           "tokens", "aux_loss", "sets", "router", "text"}) {
                     if (line.object.contains(key)) seen += line.object.at(key).dump() + " ";
                   }
                   seen += "\n";
                   return true;
                 });
    seen += files_of(path(name)) + "lines of steps: ";
    size_t said = 0;
    for (size_t at = ended.err.find("  loss "); at != std::string::npos;
         at = ended.err.find("  loss ", at + 1)) {
      ++said;
    }
    return seen + std::to_string(said);
  }

  // Returns the names of the files; those of logs have the time in their name.
  static std::string files_of(const std::string& directory) {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
      const std::string name = fs::relative(entry.path(), directory).string();
      const bool events = name.find("tfevents") != std::string::npos;
      if (entry.is_regular_file()) names.push_back(events ? "tfevents" : name);
    }
    std::ranges::sort(names);
    std::string text;
    for (const std::string& name : names) text += name + "\n";
    return text;
  }

  // Returns the number of prepared files after another file was prepared into the same cache.
  std::string cache_files(const Arguments& settings) const {
    fs::remove_all(path("small"));
    const Arguments cache = joined(settings, {"data.cache=$/small"});
    for (const char* file : {"rows", "other"}) {
      const std::string train = "data.train=[\"$/" + std::string(file) + ".jsonl\"]";
      const Ended ended =
          run_command(command({"prepare", path("run.toml")}, joined(cache, {train})));
      EXPECT_EQ(ended.exit_code, 0) << ended.err;
    }
    const std::string files = files_of(path("small"));
    size_t count = 0;
    for (size_t at = files.find(".tok"); at != std::string::npos; at = files.find(".tok", at + 1)) {
      ++count;
    }
    return std::to_string(count);
  }

  std::string prepare_threads(const Arguments& settings) const {
    std::vector<Override> overrides;
    for (const std::string& word : command({}, settings)) {
      const size_t sign = word.find('=');
      overrides.push_back({word.substr(2, sign - 2), word.substr(sign + 1)});
    }
    const RunConfig config = load_run_config({path("run.toml")}, overrides);
    return std::to_string(RunPreparation(config, path("model"), 257).options({}).threads);
  }

  std::string directory_;
};

// Goal: no key is accepted and read by nothing. A new key needs an entry above; an entry needs a
// change that shows.
TEST(EveryKey, ShowsInARunOrAPlanOrIsRefused) {
  Looker looker;
  std::map<Arguments, std::string> seen;  // of the settings of both runs
  for (const Sight sight : {Sight::kRun, Sight::kRanks}) {
    ASSERT_EQ(looker.look(sight, {}), looker.look(sight, {})) << "looks are comparable";
  }
  size_t keys = 0;
  for (const Section& section : run_file_sections()) {
    for (const Key& key : section.keys) {
      ++keys;
      const auto found = kChanges.find(key.full_name());
      if (found == kChanges.end()) {
        ADD_FAILURE() << key.full_name() << ": add a change that shows what the key does";
        continue;
      }
      const auto& [value, both, sight] = found->second;
      if (sight == Sight::kOtherTest) {
        const std::string test = text_of_file(test_data() + "/" + value);
        EXPECT_NE(test.find("--" + key.full_name() + "="), std::string::npos)
            << value << " does not set " << key.full_name();
        continue;
      }
      const std::string setting = key.full_name() + "=" + value;
      if (sight == Sight::kOneValue) {
        EXPECT_EQ(key.choices.size(), 1u) << key.full_name() << " has other values by now";
        EXPECT_TRUE(looker.look(Sight::kRun, {setting}).starts_with("2\n")) << setting;
        continue;
      }
      Arguments place = both;
      place.push_back("at " + std::to_string(static_cast<int>(sight)));
      if (!seen.contains(place)) seen[place] = looker.look(sight, both);
      EXPECT_NE(looker.look(sight, joined(both, {setting})), seen[place])
          << setting << " changes nothing";
    }
  }
  EXPECT_EQ(kChanges.size(), keys) << "an entry names no key";
}

}  // namespace
}  // namespace longshore
