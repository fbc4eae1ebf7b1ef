// Every value of the keys of the run file that name a choice does something: any two values of a
// key differ in a run of two steps, in the plan, or in prepared data, and each is accepted
// somewhere. The values come from the table of keys.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/texts.h"
#include "config/field_table.h"
#include "tests/parity/looker.h"

namespace longshore {
namespace {

// Place: settings under which values of a key are compared, beside the base settings of Looker.
// `$` is its directory.
struct Place {
  Sight sight = Sight::kRun;
  Arguments settings = {};
};

const Arguments kLora = {"adapter.kind=lora"};
const Arguments kBF16 = {"precision.compute=bf16"};
const Arguments kDrive = {"offload.nvme=[\"$/drive\"]"};
const Arguments kTemplate = {"data.chat_template=$/one.jinja", "data.max_tokens=512"};
const Arguments kUnclipped = {"train.max_grad_norm=0.0"};
const Arguments kEval = {"data.eval=[\"$/other.jsonl\"]", "eval.every_steps=1",
                         "eval.max_new_tokens=4", "eval.prompts=[\"a\"]"};

Arguments rows_in(const std::string& name, const Arguments& more = {}) {
  return joined({"data.train=[\"$/" + name + ".jsonl\"]"}, more);
}

// Returns one setting for two files, the second with shorter or fewer rows.
Arguments two_files(const std::string& second, const Arguments& more) {
  return joined({"data.train=[\"$/rows.jsonl\", \"$/" + second + ".jsonl\"]"}, more);
}

// The places of each key, in the order in which they are looked at: a later one is looked at only
// with values that look alike in all earlier ones, or that no earlier one accepts. Where a value
// needs a GPU (device.kind, dist.backend, fsdp.gather), its plan is compared, and a refusal counts.
std::map<std::string, std::vector<Place>> places_of_training() {
  return {{"model.init", {{Sight::kRun, {"model.path=$/model2"}}}},
          {"adapter.kind", {{Sight::kRun}}},
          {"adapter.base", {{Sight::kRun, kLora}}},
          {"adapter.bias",
           {{Sight::kRun, joined(kLora, {"model.path=$/biased", "adapter.targets=[\"q_proj\"]"})}}},
          {"train.loss",
           {{Sight::kRun, rows_in("pairs")},
            {Sight::kRun, rows_in("pairs", {"preference.label_smoothing=0.2"})},
            {Sight::kRun, rows_in("policy")},
            {Sight::kRun, rows_in("teacher")},
            {Sight::kRun}}},
          {"optimizer.decay", {{Sight::kRun, {"optimizer.weight_decay=5.0"}}}},
          // The numbers are the same; the order of a step's operations differs.
          {"optimizer.overlap", {{Sight::kSchedule, kUnclipped}}},
          {"schedule.name",
           {{Sight::kRun,
             {"train.steps=6", "schedule.decay_steps=2", "schedule.cycles=2", "schedule.power=2.0",
              "schedule.timescale=3"}}}},
          {"schedule.decay_type",
           {{Sight::kRun, {"train.steps=6", "schedule.name=wsd", "schedule.decay_steps=4"}}}},
          {"precision.compute", {{Sight::kRun}}},
          {"precision.drain", {{Sight::kRun}, {Sight::kRun, kBF16}}},
          {"checkpoint.export", {{Sight::kRun, kLora}}},
          {"checkpoint.export_format",
           {{Sight::kRun, rows_in("tokens", {"model.path=$/packed", "checkpoint.export=end"})}}},
          {"eval.prompt_format",
           {{Sight::kRun, joined(kEval, kTemplate)},
            {Sight::kRun, rows_in("chat", joined(kEval, kTemplate))}}}};
}

std::map<std::string, std::vector<Place>> places_of_data() {
  return {
      {"data.format",
       {{Sight::kPrepare},
        {Sight::kPrepare, rows_in("tokens")},
        {Sight::kPrepare, rows_in("prompts", {"data.max_tokens=512"})},
        {Sight::kPrepare, rows_in("chat", kTemplate)},
        {Sight::kPrepare, rows_in("pairs", {"train.loss=dpo"})},
        {Sight::kPrepare, rows_in("judged", {"train.loss=kto"})},
        {Sight::kPrepare, rows_in("policy", {"train.loss=policy"})},
        {Sight::kPrepare, rows_in("teacher", {"train.loss=distill"})}}},
      {"data.mask", {{Sight::kPrepare, rows_in("answers", kTemplate)}, {Sight::kPrepare}}},
      {"data.mix", {{Sight::kRun, two_files("few", {"data.shuffle=false", "train.epochs=1.0"})}}},
      {"data.prompt_template",
       {{Sight::kPrepare, rows_in("prompts", kTemplate)},
        {Sight::kPrepare, rows_in("prompts", {"data.max_tokens=512"})}}},
      {"data.overlength",
       {{Sight::kPrepare, two_files("other", {"data.max_tokens=16"})}, {Sight::kPrepare}}},
      {"data.bad_rows", {{Sight::kPrepare, rows_in("bad")}, {Sight::kPrepare}}},
      {"data.special_tokens", {{Sight::kPrepare, rows_in("special")}, {Sight::kPrepare}}}};
}

std::map<std::string, std::vector<Place>> places_of_tiers() {
  return {
      {"precision.reduce", {{Sight::kRanks}}},
      {"fsdp.strategy", {{Sight::kRanks}}},
      // The head of the model with experts is larger than a group of them. Under the limit only
      // smaller units than blocks fit.
      {"fsdp.units",
       {{Sight::kRanks, {"model.path=$/experts"}},
        {Sight::kRanks, {"offload.device_memory=1100KiB"}}}},
      // Under the limit the activations of some units fit.
      {"fsdp.recompute", {{Sight::kRanks}, {Sight::kRanks, {"offload.device_memory=1300KiB"}}}},
      // Ranks of one machine, and ranks of two, which share no memory.
      {"fsdp.gather",
       {{Sight::kRanks, joined(kBF16, {"fsdp.strategy=hybrid_shard"})}, {Sight::kRanks, kBF16}}},
      {"offload.parameters",
       {{Sight::kRun, joined(kDrive, {"offload.optimizer=nvme"})},
        {Sight::kRun, {"train.freeze=[\"*embed*\"]"}}}},
      {"offload.optimizer", {{Sight::kRun, kDrive}}},
      {"offload.activations", {{Sight::kRun, kDrive}}},
      {"offload.state_format", {{Sight::kRun}}},
      {"device.kind", {{Sight::kGpus}, {Sight::kNoGpu}}},
      {"dist.backend", {{Sight::kGpus}, {Sight::kNoGpu}}}};
}

std::map<std::string, std::vector<Place>> all_places() {
  std::map<std::string, std::vector<Place>> places = places_of_training();
  places.merge(places_of_data());
  places.merge(places_of_tiers());
  return places;
}

// Returns the values that the table names, and the words of keys that take other values too.
std::vector<std::string> values_of(const Key& key) {
  const std::string name = key.full_name();
  if (name == "data.prompt_template") return {"auto", "plain", "alpaca", "chat"};
  if (key.type != KeyType::kUnits) return key.choices;
  std::vector<std::string> names;
  for (int kind = 0; kind <= static_cast<int>(UnitsChoice::Kind::kGroups); ++kind) {
    const std::string_view word = name_of(static_cast<UnitsChoice::Kind>(kind));
    if (!word.empty()) names.emplace_back(word);
  }
  return names;
}

using Values = std::vector<std::string>;

// Comparison: the values of one key, in groups of those that look alike so far.
class Comparison {
 public:
  Comparison(std::string key, Values values)
      : key_(std::move(key)), groups_{values}, unaccepted_(values.begin(), values.end()) {}

  // Refusals look alike, because a message may only repeat the value.
  void look(const Looker& looker, const Place& place) {
    std::vector<Values> groups;
    for (const Values& group : groups_) {
      if (group.size() == 1 && !unaccepted_.contains(group.front())) {
        groups.push_back(group);
        continue;
      }
      std::map<std::string, Values> alike;
      for (const std::string& value : group) {
        const Seen seen = looker.look(place.sight, joined(place.settings, {key_ + "=" + value}));
        alike[seen.refused ? "refused" : seen.text].push_back(value);
        if (!seen.refused) unaccepted_.erase(value);
      }
      for (auto& [text, values] : alike) groups.push_back(std::move(values));
    }
    groups_ = std::move(groups);
  }

  void expect_different() const {
    for (const Values& group : groups_) {
      EXPECT_EQ(group.size(), 1u) << key_ << ": " << joined(group, " and ")
                                  << " look alike: add a place where they differ";
    }
    for (const std::string& value : unaccepted_) {
      ADD_FAILURE() << key_ << " = " << value << " is refused: add a place that accepts it";
    }
  }

 private:
  std::string key_;
  std::vector<Values> groups_;
  std::set<std::string> unaccepted_;  // refused everywhere so far
};

// Goal: no value of a key is accepted and does what another one does. A new value must differ from
// all others in a place of its key above.
TEST(EveryValue, DiffersFromTheOthersOfItsKey) {
  const Looker looker("every-value");
  const std::map<std::string, std::vector<Place>> places = all_places();
  size_t used = 0;
  for (const Section& section : run_file_sections()) {
    for (const Key& key : section.keys) {
      const Values values = values_of(key);
      if (values.size() < 2) continue;  // optimizer.name: every_key_test.cpp refuses others
      const auto found = places.find(key.full_name());
      if (found == places.end()) {
        ADD_FAILURE() << key.full_name()
                      << ": add places where its values differ: " << joined(values, ", ");
        continue;
      }
      ++used;
      Comparison comparison(key.full_name(), values);
      for (const Place& place : found->second) comparison.look(looker, place);
      comparison.expect_different();
    }
  }
  EXPECT_EQ(places.size(), used) << "places are given for a key without choices";
}

}  // namespace
}  // namespace longshore
