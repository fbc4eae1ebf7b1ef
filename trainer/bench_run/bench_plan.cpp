#include "trainer/bench_run/bench_plan.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "base/file.h"
#include "base/quiet_log.h"
#include "config/toml_document.h"

namespace longshore {
namespace {

using Way = std::vector<Override>;

// Returns the ways in the order in which they are tried; each is slower than the one before.
std::vector<Way> ways_of(const BenchRecipe& recipe, const std::vector<std::string>& drives) {
  const Override host_inputs = {"offload.activations", "\"host\""};
  std::vector<Way> ways = {{}, {host_inputs}};
  if (drives.empty() || !recipe.may_use_drives()) return ways;
  const Way state = {{"offload.optimizer", "\"nvme\""}, {"offload.nvme", toml_list(drives)}};
  Way all = state;
  all.push_back({"offload.parameters", "\"nvme\""});
  for (Way way : {state, all}) {
    ways.push_back(way);
    way.push_back(host_inputs);
    ways.push_back(way);
  }
  return ways;
}

RunArguments arguments_of(const BenchRecipe& recipe, const BenchTarget& target) {
  RunArguments arguments;
  const auto set = [&arguments](const std::string& key, const std::string& value) {
    arguments.overrides.push_back({key, value});
  };
  for (const DraftKey& key : recipe.keys) set(key.full_name(), key.value);
  if (target.tiny) {
    set("data.max_tokens", std::to_string(kTinyTokens));
    set("train.sequences_per_step", std::to_string(kTinySequences));
  }
  set("model.path", quote_toml(target.model));
  set("model.init", target.random ? "\"random\"" : "\"pretrained\"");
  set("run.dir", quote_toml(target.directory));
  set("data.train", toml_list({target.rows}));
  set("data.format", "\"tokens\"");
  set("train.steps", std::to_string(target.steps));
  set("schedule.name", "\"constant\"");
  set("checkpoint.every_steps", "0");
  set("checkpoint.export", "\"never\"");
  set("checkpoint.resume", "\"never\"");
  if (!target.device_memory.empty()) {
    set("offload.device_memory", quote_toml(target.device_memory));
  }
  if (!target.host_memory.empty()) set("offload.host_memory", quote_toml(target.host_memory));
  return arguments;
}

MeasuredRun draft_of(const RunArguments& arguments) {
  return MeasuredRun(OpenedRun(read_run(
      arguments, {.weights = ModelDirectory::Weights::kOptional, .probe_memory = Bytes{0}})));
}

// Returns the line of the list for a recipe.
std::string list_line(const BenchRecipe& recipe, const BenchPlan& plan) {
  const std::string drives = plan.drives > 0 ? format_bytes(plan.drives) : "-";
  return formatted("%-18s %10s %10s %10s  %-5s %s\n", recipe.name.c_str(),
                   format_bytes(plan.device).c_str(), format_bytes(plan.host).c_str(),
                   drives.c_str(), plan.fits ? "fits" : "no", recipe.summary.c_str());
}

// Returns the first way that fits, or the last one. The reason of a refusal, whose remedies take
// more drafts, is written only if it is wanted.
BenchPlan first_fitting(const BenchRecipe& recipe, const BenchTarget& target, bool with_refusal) {
  const QuietLog quiet;  // the run itself repeats what one of the drafts says
  const std::vector<Way> ways = ways_of(recipe, target.drives);
  BenchPlan plan;
  for (size_t i = 0; i < ways.size() && !plan.fits; ++i) {
    plan.arguments = arguments_of(recipe, target);
    plan.arguments.overrides.insert(plan.arguments.overrides.end(), ways[i].begin(), ways[i].end());
    plan.way = ways[i];
    const MeasuredRun draft = draft_of(plan.arguments);
    const TierPlan drafted = draft_tier_plan(draft.inputs, draft.machine);
    plan.parameters = drafted.parameters;
    plan.device = drafted.device.total;
    plan.host = drafted.host.total;
    const std::vector<Bytes>& files = drafted.drives.files;
    plan.drives = std::accumulate(files.begin(), files.end(), Bytes{0});
    plan.fits = drafted.fits();
    if (plan.fits || !with_refusal || i + 1 < ways.size()) continue;
    plan.refusal = explain_misfit(draft.inputs, draft.machine);
  }
  return plan;
}

}  // namespace

BenchPlan plan_bench_run(const BenchRecipe& recipe, const BenchTarget& target) {
  return first_fitting(recipe, target, true);
}

std::string bench_list(const std::string& directory, const BenchTarget& common) {
  std::string text = formatted("%-18s %10s %10s %10s  %-5s %s\n", "recipe", "device", "host",
                               "drives", "here", "what it trains");
  for (const BenchRecipe& recipe : bench_recipes()) {
    const std::string model = directory + "/" + recipe.name;
    make_directories(model);
    write_file_durably(model + "/config.json", bench_model_config(recipe, common.tiny));
    BenchTarget target = common;
    target.model = model;
    target.random = !recipe.reads_files();
    target.directory = directory + "/run";
    target.rows = directory + "/rows.jsonl";
    text += list_line(recipe, first_fitting(recipe, target, false));
  }
  return text;
}

}  // namespace longshore
