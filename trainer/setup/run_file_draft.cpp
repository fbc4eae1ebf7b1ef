#include "trainer/setup/run_file_draft.h"

#include <algorithm>
#include <array>
#include <ranges>

#include "base/errors.h"
#include "base/texts.h"
#include "config/field_table.h"
#include "config/toml_document.h"

namespace longshore {
namespace {

constexpr int64_t kShortest = 128, kLongest = 4096;  // tokens of proposed sequences
constexpr int64_t kFewSteps = 100;
constexpr Bytes kSmallData = 4 * kMiB;
constexpr int64_t kBytesPerToken = 4;  // approximate bytes of text

int64_t sequence_length(const DraftFacts& facts) {
  const int64_t most = facts.max_positions > 0 ? std::min(kLongest, facts.max_positions) : kLongest;
  int64_t length = kShortest;
  while (length < facts.longest_row && length < most) length *= 2;
  return std::min(length, most);
}

// Returns AdamW's rate for training all parameters of a pretrained model; larger models need less.
std::string learning_rate(int64_t parameters) {
  if (parameters < 100'000'000) return "1e-4";
  if (parameters < 3'000'000'000) return "2e-5";
  return parameters < 20'000'000'000 ? "1e-5" : "5e-6";
}

std::string longest_row_text(const DraftFacts& facts) {
  const bool all = facts.counted.max_tokens > 0;
  return std::string(all ? "the longest row has " : "the longest of the first rows has ") +
         format_count(facts.longest_row) + " tokens";
}

std::string left_out_text(const DraftFacts::Counted& counted) {
  if (counted.max_tokens == 0) return "a longer row is left out; the first start reports how many";
  if (counted.left_out == 0) return "a longer row is left out; now there is none";
  return "leaves out the " + format_count(counted.left_out) + " of " + format_count(counted.rows) +
         " rows that are longer";
}

void add_data(RunFileDraft& draft, const DraftFacts& facts) {
  const int64_t length = sequence_length(facts);
  draft.set("data", "train", toml_list(facts.data), "");
  draft.set("data", "max_tokens", std::to_string(length), longest_row_text(facts));
  if (facts.text) {
    draft.set("data", "overlength", "\"split\"", "a longer text becomes several sequences");
  } else {
    draft.set("data", "overlength", "\"drop\"", left_out_text(facts.counted));
  }
  draft.set("eval", "split", "0.02", "of the documents, never trained: their loss is reported");
}

bool is_small(const DraftFacts& facts) {
  return facts.data_bytes < kSmallData;
}

// Returns whether the run file is for the least memory.
bool is_least(const DraftFacts& facts) {
  return facts.goal == DraftGoal::kSmall || facts.goal == DraftGoal::kSmallest;
}

// Returns a power of two from 2 to 16 that leaves the run about kFewSteps steps or more.
int64_t sequences_per_step(const DraftFacts& facts) {
  const int64_t sequences = facts.data_bytes * (is_small(facts) ? 3 : 1) / kBytesPerToken /
                            std::max<int64_t>(sequence_length(facts), 1);
  int64_t per_step = 16;
  while (per_step > 2 && sequences / per_step < kFewSteps) per_step /= 2;
  return per_step;
}

void add_length(RunFileDraft& draft, const DraftFacts& facts) {
  const bool small = is_small(facts);
  draft.set("train", "epochs", small ? "3" : "1",
            small ? "the data is small: read three times" : "every document once");
  draft.set("train", "sequences_per_step", std::to_string(sequences_per_step(facts)),
            "over all ranks; the same results on one GPU or eight");
}

// Returns the recipe's keys and the user's own: directories, model, data and drives.
RunFileDraft recipe_draft(const DraftFacts& facts) {
  const std::string name(facts.recipe->name);
  RunFileDraft draft(facts.given);
  draft.set("run", "dir", quote_toml(facts.run_directory), "everything the run writes");
  draft.set("model", "path", quote_toml(facts.model), "");
  add_data(draft, facts);
  bool drives = false;
  for (const DraftKey& key : keys_of_run_file(facts.recipe->text, name)) {
    const std::string path = key.full_name();
    if (path == "model.path") continue;
    drives = drives || path == "offload.nvme";
    draft.set(key.section, key.name, path == "offload.nvme" ? toml_list(facts.drives) : key.value,
              path == "data.max_tokens" ? "the recipe's; " + longest_row_text(facts) : key.why);
  }
  if (drives == facts.drives.empty()) {
    throw ConfigError("init: the recipe " + name +
                      (drives ? " has state on drives; name a directory on each with --nvme"
                              : " has nothing on drives; leave out --nvme"));
  }
  draft.add_given();
  return draft;
}

}  // namespace

std::vector<DraftKey> keys_of_run_file(std::string_view text, const std::string& origin) {
  std::vector<std::string_view> lines;
  for (const auto line : std::views::split(text, '\n'))
    lines.emplace_back(line.begin(), line.end());
  std::vector<DraftKey> keys;
  for (const TomlMember& section : parse_toml(text, origin)) {
    for (const TomlMember& key : section.value.members) {
      const std::string_view line = lines.at(static_cast<size_t>(key.place.line) - 1);
      const size_t begin = line.find('=') + 1, comment = line.find("  # ");
      const std::string value(trimmed(line.substr(begin, comment - begin)));
      LONGSHORE_CHECK(parse_toml_value(value, key.place)) << key.place.text() << ": " << value;
      const bool reasoned = comment != std::string_view::npos;
      keys.push_back({section.name, key.name, value,
                      std::string(reasoned ? trimmed(line.substr(comment + 4)) : "")});
    }
  }
  return keys;
}

std::vector<DraftKey> keys_given(const std::vector<Override>& overrides) {
  const RunConfig config = load_run_config({}, overrides, {.complete = false});
  std::vector<DraftKey> keys;
  for (const Override& said : overrides) {
    const Key& key = key_named(said.key);
    std::erase_if(keys, [&](const DraftKey& other) { return other.full_name() == said.key; });
    keys.push_back({key.section, key.name, toml_text(key, key.get(config)), ""});
  }
  return keys;
}

std::string RunFileDraft::given(std::string_view key) const {
  const auto found = std::ranges::find(given_, key, &DraftKey::full_name);
  return found == given_.end() ? "" : found->value;
}

bool RunFileDraft::has_no_effect(const std::string& key) const {
  if (const std::string rival(rival_of(key)); !given(rival).empty()) {
    return given(rival) != toml_text(key_named(rival), key_named(rival).default_value());
  }
  if (!key.starts_with("adapter.")) return false;
  if (given("adapter.kind") == "\"none\"") return true;
  const std::string start = given("adapter.path");
  return !start.empty() && start != "\"new\"" && key != "adapter.base";
}

void RunFileDraft::set(const std::string& section, const std::string& name,
                       const std::string& value, const std::string& why) {
  LONGSHORE_CHECK(find_key(section, name) != nullptr) << section << "." << name;
  const std::string full = section + "." + name, said = given(full);
  if (said.empty() && has_no_effect(full)) return;
  const DraftKey made = {section, name, said.empty() ? value : said, said.empty() ? why : ""};
  auto behind = keys_.end();
  for (auto key = keys_.begin(); key != keys_.end(); ++key) {
    if (key->section == section && key->name == name) {
      *key = made;
      return;
    }
    if (key->section == section) behind = key + 1;
  }
  keys_.insert(behind, made);
}

void RunFileDraft::add_given() {
  for (const DraftKey& key : given_) set(key.section, key.name, key.value, "");
}

std::vector<Override> RunFileDraft::overrides() const {
  std::vector<Override> overrides;
  for (const DraftKey& key : keys_) overrides.push_back({key.full_name(), key.value});
  return overrides;
}

std::string RunFileDraft::toml(const std::string& made_of) const {
  std::string text = "# Made by longshore init" + (made_of.empty() ? "" : " of " + made_of) +
                     ". Every key: longshore config keys, or docs/run_file.md.\n";
  std::string section;
  for (const DraftKey& key : keys_) {
    if (key.section != section) text += "\n[" + key.section + "]\n";
    section = key.section;
    const std::string line = key.name + " = " + key.value;
    if (key.why.empty()) {
      text += line + "\n";
    } else if (line.size() + key.why.size() + 4 <= 100) {
      text += line + "  # " + key.why + "\n";
    } else {
      text += "# " + key.why + "\n" + line + "\n";
    }
  }
  return text;
}

RunFileDraft first_draft(const DraftFacts& facts) {
  if (facts.recipe != nullptr) return recipe_draft(facts);
  RunFileDraft draft(facts.given);
  draft.set("run", "dir", quote_toml(facts.run_directory), "everything the run writes");
  draft.set("model", "path", quote_toml(facts.model), "");
  if (facts.adapter) {
    const std::string rank = draft.given("adapter.r");
    draft.set("adapter", "kind", "\"lora\"", "trains low-rank adapters over the frozen model");
    draft.set("adapter", "r", "16", "");
    draft.set("adapter", "alpha", rank.empty() ? "16" : rank, "");
    draft.set("adapter", "targets", "[\"all-linear\"]", "every matrix of attention and MLP");
  }
  add_data(draft, facts);
  add_length(draft, facts);
  // A file for the least memory has the least micro-batch.
  draft.set("train", "micro_batch", is_least(facts) ? "1" : "\"auto\"",
            is_least(facts) ? "sequences on the device at a time"
                            : "the fastest that fits; changes speed, not results");
  if (facts.pairs || facts.judged) {
    draft.set("train", "loss", facts.pairs ? "\"dpo\"" : "\"kto\"",
              facts.pairs ? "the rows are pairs of answers; docs/preference.md"
                          : "the rows are answers with a label; docs/preference.md");
    draft.set("optimizer", "lr", facts.adapter ? "1e-5" : "1e-6",
              "usual for a preference loss; tune it first");
  } else {
    draft.set("optimizer", "lr", facts.adapter ? "2e-4" : learning_rate(facts.parameters),
              facts.adapter ? "usual for adapters; tune it first"
                            : "usual for a model of this size; tune it first");
  }
  draft.set("schedule", "warmup_steps", "10", "");
  const bool emulated = !facts.gpu && !facts.cpu_bf16;
  draft.set("precision", "compute", emulated ? "\"fp32\"" : "\"bf16\"",
            emulated ? "this CPU has no bf16 instructions" : "");
  draft.set("fsdp", "units", "\"auto\"", "the coarsest that fits");
  draft.add_given();
  return draft;
}

std::vector<DraftStep> draft_steps(const DraftFacts& facts) {
  if (facts.recipe != nullptr) return {{"the recipe's keys", {}}};
  const bool small = is_least(facts);
  const bool exact = facts.goal == DraftGoal::kExact;
  const DraftKey state = exact   ? DraftKey{"offload", "state_format", "\"split\"",
                                          "fp32 master and moments, bit for bit"}
                         : small ? DraftKey{"offload", "state_format", "\"split-int8\"",
                                            "8-bit moments: 8 host bytes a parameter"}
                                 : DraftKey{"offload", "state_format", "\"split-bf16\"",
                                            "bf16 moments: 10 host bytes a parameter"};
  std::vector<DraftStep> steps = {{"", {state}}};
  steps.push_back({"activation checkpoints on the host",
                   {{"offload", "activations", "\"host\"", "the device has no room for them"}}});
  if (!small && !exact) {
    steps.push_back({"8-bit moments",
                     {{"offload", "state_format", "\"split-int8\"",
                       "8-bit moments: with bf16 ones the host has too little memory"}}});
  }
  if (!facts.drives.empty()) {
    steps.push_back({"optimizer state on drives",
                     {{"offload", "optimizer", "\"nvme\"", "the host has no room for it"},
                      {"offload", "nvme", toml_list(facts.drives), "one directory per drive"},
                      {"offload", "state_format", exact ? "\"split\"" : "\"split-bf16\"", ""}}});
    steps.push_back({"parameters on drives too",
                     {{"offload", "parameters", "\"nvme\"", "the host has no room for them"}}});
  }
  return steps;
}

}  // namespace longshore
