// The `init` command writes a run file that fits this machine, this model and this data.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <iostream>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/processor.h"
#include "base/texts.h"
#include "config/toml_document.h"
#include "data/rows/row_block.h"
#include "hf/hub_cache.h"
#include "trainer/commands/command.h"
#include "trainer/commands/input_check.h"
#include "trainer/data/run_prepare.h"
#include "trainer/device/device_choice.h"
#include "trainer/directory/run_directory.h"
#include "trainer/report/data_inspection.h"
#include "trainer/setup/other_run_file.h"
#include "trainer/setup/plan_forecast.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRows = 200;               // rows read per file
constexpr Bytes kMostCounted = 512 * kMiB;   // larger data is not counted
constexpr int64_t kMostPositions = 1 << 20;  // for models without a maximum length

// InitOptions: the options of the command line. Some options are other names of keys.
struct InitOptions {
  std::string file = "run.toml";
  std::string model, goal = "balanced", recipe, run_directory, machine;
  std::string other;  // configuration of another trainer to convert; empty: none
  std::vector<std::string> data, drives;
  std::vector<Override> overrides;  // keys for the run file
  bool adapter = false;
  bool replace = false;
  bool json = false;
};

// Asks on the terminal until `check` accepts the answer, and returns the answer. `check` throws to
// refuse one. ConfigError without a terminal.
std::string ask(const std::string& option, const std::string& question,
                const std::function<void(const std::string&)>& check) {
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) {
    throw ConfigError("init: " + option + " is missing, and there is no terminal to ask on; " +
                      question);
  }
  for (std::string answer;;) {
    std::cerr << question << ": " << std::flush;
    if (!std::getline(std::cin, answer)) throw ConfigError("init: no answer for " + option);
    if (answer.empty()) continue;
    try {
      check(answer);
      return answer;
    } catch (const Error& error) {
      log_error(error.what());
    }
  }
}

void check_model(const std::string& answer) {
  open_hub_directory(answer, "a model is a Hugging Face directory");
}

void check_data(const std::string& answer) {
  DataSection data;
  data.train = {answer};
  for (const std::string& path : with_data_files(data).train) {
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) throw ConfigError(path + ": no such file");
  }
}

struct NamedGoal {
  const char* name;
  DraftGoal goal;
};
constexpr std::array kGoals = {
    NamedGoal{"balanced", DraftGoal::kBalanced}, NamedGoal{"exact", DraftGoal::kExact},
    NamedGoal{"small", DraftGoal::kSmall},       NamedGoal{"fastest", DraftGoal::kFastest},
    NamedGoal{"longest", DraftGoal::kLongest},   NamedGoal{"smallest", DraftGoal::kSmallest}};

// InitPlace is the target machine of the run file.
struct InitPlace {
  std::optional<DescribedMachine> machine;  // empty: the local machine
  int32_t ranks = 1;                        // ranks on that machine
};

int32_t ranks_of(const DescribedMachine& described) {
  return static_cast<int32_t>(std::max<size_t>(1, described.machine.gpus.size()));
}

// A machine has a rank for each of its GPUs. A recipe's name ends with its machine. Without a local
// GPU, that machine is the target.
InitPlace place_of(const InitOptions& options, const NamedText* recipe) {
  InitPlace place;
  if (!options.machine.empty()) {
    place.machine = read_machine(options.machine);
    place.ranks = ranks_of(*place.machine);
  }
  if (recipe == nullptr || place.machine) return place;
  const std::string name(recipe->name);
  DescribedMachine own = read_machine(name.substr(name.rfind('_') + 1));
  place.ranks = ranks_of(own);
  if (find_gpus().usable.empty()) place.machine = std::move(own);
  return place;
}

// Returns the named recipe, or null if no recipe was requested. ConfigError for an unknown name.
const NamedText* recipe_of(const InitOptions& options) {
  if (options.recipe.empty()) return nullptr;
  const NamedText* recipe = find_text(common_recipes(), options.recipe);
  if (recipe != nullptr) return recipe;
  throw ConfigError("init: --recipe " + options.recipe +
                    ": no such recipe; recipes, MODEL_MACHINE:" + names_of(common_recipes()));
}

// Returns the hub id of the recipe's model.
std::string model_of(const NamedText& recipe) {
  const std::vector<DraftKey> keys = keys_of_run_file(recipe.text, std::string(recipe.name));
  const auto model = std::ranges::find_if(
      keys, [](const DraftKey& key) { return key.section == "model" && key.name == "path"; });
  LONGSHORE_CHECK(model != keys.end()) << recipe.name << " names no model";
  return parse_toml_value(model->value, {})->string;
}

// Checks the inputs and throws all problems at once.
CheckedInputs looked_at(const RunConfig& config) {
  CheckedInputs inputs = check_inputs(config);
  if (inputs.problems.empty()) return inputs;
  std::vector<std::string> problems;
  for (const InputProblem& problem : inputs.problems) problems.push_back(problem.text);
  throw ConfigError(problems);
}

void look_at_data(const RunConfig& config, const ModelSource& source, DraftFacts& facts) {
  const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
  facts.text = true;
  for (const std::string& path : with_data_files(config.data).train) {
    std::error_code ignored;
    facts.data_bytes += static_cast<Bytes>(fs::file_size(path, ignored));
    if (is_text_file(path)) {
      facts.longest_row = std::max<int64_t>(facts.longest_row, 1024);  // the document may be long
      continue;
    }
    const PrepareOptions options = preparation.options({path});
    const auto format =
        detect_file_format(JsonlReader(path), row_format_options(options), /*skip_bad_rows=*/true);
    facts.pairs = facts.pairs || format == DataSection::Format::kPreference;
    facts.judged = facts.judged || format == DataSection::Format::kUnpaired;
    for (const InspectedRow& row : inspect_rows(options, 0, kRows)) {
      facts.longest_row = std::max(facts.longest_row, static_cast<int64_t>(row.ids.size()));
      facts.text = facts.text && std::ranges::find(row.labels, TokenId(-100)) == row.labels.end();
    }
  }
}

// Counts all rows with the length that the draft gives them, which is that of the longest row where
// the model and a usual sequence have room for it. A start of the run finds the data prepared. The
// goal kLongest changes the length later.
void count_rows(RunConfig config, const ModelSource& source, DraftFacts& facts) {
  if (facts.text || facts.data_bytes > kMostCounted || facts.goal == DraftGoal::kLongest) return;
  std::vector<std::string> files = with_data_files(config.data).train;
  std::erase_if(files, is_text_file);
  for (;;) {
    const RunFileDraft draft = first_draft(facts);
    const RunConfig drafted = load_run_config({}, draft.overrides(), {.complete = false});
    if (facts.counted.max_tokens == drafted.data.max_tokens) return;
    config.data.max_tokens = drafted.data.max_tokens;
    config.data.overlength = drafted.data.overlength;
    const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
    const FileReport total = preparation.run(files, [] {}).report.total();
    facts.counted = {drafted.data.max_tokens, total.rows, total.dropped};
    facts.longest_row = std::max(facts.longest_row, total.longest_row_tokens);
  }
}

// Returns whether the machine's CPU computes faster in bf16 than in fp32.
bool computes_in_bf16(const MachineRates& rates) {
  const auto speed = [&rates](DType dtype) {
    const ComputeRates* compute = rates.of(DeviceKind::kCpu, dtype);
    return compute == nullptr ? 0.0 : product_flops(*compute, 1024.0);
  };
  return speed(DType::kBF16) > speed(DType::kF32);
}

DraftFacts facts_of(const InitOptions& options, const NamedText* recipe, const RunConfig& config,
                    const InitPlace& place) {
  const std::optional<DescribedMachine>& described = place.machine;
  DraftFacts facts;
  facts.recipe = recipe;
  facts.model = options.model;
  facts.data = options.data;
  facts.drives = options.drives;
  facts.adapter = options.adapter || config.adapter.on();
  facts.given = keys_given(options.overrides);
  facts.goal = std::ranges::find(kGoals, options.goal, &NamedGoal::name)->goal;
  facts.run_directory = config.run.dir;
  const CheckedInputs inputs = looked_at(config);
  facts.parameters = inputs.source->spec().parameter_elements();
  facts.max_positions = inputs.source->arch().max_positions;
  facts.gpu = (described ? !described->machine.gpus.empty() : !find_gpus().usable.empty()) &&
              config.device.kind != DeviceSection::Kind::kCpu;
  facts.cpu_bf16 = described ? computes_in_bf16(described->rates) : cpu_has_bf16();
  look_at_data(config, *inputs.source, facts);
  const auto skip_counting = [&facts](const Error& error) {
    facts.counted = {};
    log_warning(error.what() + std::string("; the rows are not counted"));
  };
  try {
    count_rows(config, *inputs.source, facts);
  } catch (const DataError& error) {
    skip_counting(error);
  } catch (const IoError& error) {
    skip_counting(error);
  }
  return facts;
}

struct FittedDraft {
  RunFileDraft draft;
  std::string words;  // describes the draft step that fits
  TierPlan plan;
};

MeasuredRun set_up(const RunFileDraft& draft, const InitPlace& place) {
  AssumedRanks assumed{.ranks = place.ranks, .per_node = place.ranks};
  if (place.machine) assumed.machine = place.machine->machine;
  return MeasuredRun(OpenedRun(read_run({.files = {}, .overrides = draft.overrides()}, assumed)));
}

// Describes the attempt, with the plan's micro-batch.
std::string words_of(const DraftStep& step, const MeasuredRun& setup) {
  const int64_t size = setup.inputs.micro_batch;
  return (step.words.empty() ? "" : step.words + ", ") + "micro-batches of " +
         (size == 1 ? "one sequence" : std::to_string(size) + " sequences");
}

// Applies the draft's steps in order and returns the first result whose plan fits. A step whose
// main key is given on the command line is not tried.
FittedDraft fit(const DraftFacts& facts, const InitPlace& place) {
  RunFileDraft draft = first_draft(facts);
  std::string why;
  bool first = true;
  for (const DraftStep& step : draft_steps(facts)) {
    const bool given = !step.keys.empty() && !draft.given(step.keys.front().full_name()).empty();
    if (given && !first) continue;
    first = false;
    for (const DraftKey& key : step.keys) draft.set(key.section, key.name, key.value, key.why);
    MeasuredRun setup = set_up(draft, place);
    TierPlan plan = draft_tier_plan(setup.inputs, setup.machine);
    if (plan.fits()) return {draft, words_of(step, setup), std::move(plan)};
    why = explain_misfit(setup.inputs, setup.machine);
  }
  throw DoesNotFitError("init: nothing that was tried fits this machine" +
                        std::string(facts.drives.empty() ? "; with --nvme DIR the state may go to "
                                                           "drives"
                                                         : "") +
                        "\n" + why);
}

// Sets a key of the run file from a change that the search returns.
void set_change(RunFileDraft& draft, const KeyChange& change, const std::string& why) {
  const size_t dot = change.key.find('.');
  draft.set(change.key.substr(0, dot), change.key.substr(dot + 1), change.value, why);
}

// Optimizes the fitted draft for the goal.
FittedDraft search_goal(FittedDraft fitted, const DraftFacts& facts, const InitPlace& place) {
  MeasuredRun setup = set_up(fitted.draft, place);
  SearchScope scope;
  for (const DraftKey& key : facts.given) scope.kept.insert(key.full_name());
  if (facts.goal == DraftGoal::kLongest && !scope.kept.contains("data.max_tokens")) {
    const int64_t most = facts.max_positions > 0 ? facts.max_positions : kMostPositions;
    const int64_t length = longest_sequences(setup, most, scope);
    fitted.draft.set("data", "max_tokens", std::to_string(length),
                     length == most ? "as long as the model was made for"
                                    : "the longest, by doubling, that fits");
    setup = set_up(fitted.draft, place);
  }
  // The search compares plans with this micro-batch, so the run file says its number.
  fitted.draft.set("train", "micro_batch", std::to_string(setup.inputs.micro_batch),
                   "sequences on the device at a time");
  const std::optional<PlanPoint> point = best_point(facts.goal, setup, place.machine, scope);
  if (!point) throw DoesNotFitError("init: no plan of the search fits");
  const bool fast = facts.goal != DraftGoal::kSmallest;
  for (const KeyChange& change : point->changes) {
    set_change(fitted.draft, change,
               fast ? "found by a search: fastest" : "takes the lowest memory");
    fitted.words += ", " + change.key + " = " + change.value;
  }
  setup = set_up(fitted.draft, place);
  fitted.plan = draft_tier_plan(setup.inputs, setup.machine);
  return fitted;
}

Json to_json(const InitOptions& options, const DraftFacts& facts, const FittedDraft& fitted,
             const InitPlace& place) {
  const TierPlan& plan = fitted.plan;
  return {{"path", options.file},
          {"recipe", options.recipe.empty() ? Json() : Json(options.recipe)},
          {"machine", place.machine ? Json(place.machine->name) : Json()},
          {"ranks", place.ranks},
          {"model", facts.model},
          {"parameters", facts.parameters},
          {"device", facts.gpu ? "cuda" : "cpu"},
          {"fits_with", fitted.words},
          {"device_bytes", plan.device.total},
          {"host_bytes", plan.host.total},
          {"state_on_drives", plan.drives.tier.state},
          {"checkpoint_bytes", plan.checkpoint_bytes},
          {"rows", facts.counted.max_tokens > 0 ? Json(facts.counted.rows) : Json()},
          {"rows_left_out", facts.counted.max_tokens > 0 ? Json(facts.counted.left_out) : Json()},
          {"run_directory", facts.run_directory}};
}

std::string trained_on(const DraftFacts& facts, const InitPlace& place) {
  std::string text = !facts.gpu        ? "the CPU"
                     : place.ranks > 1 ? std::to_string(place.ranks) + " GPUs"
                                       : "a GPU";
  if (place.machine) text += " of " + place.machine->name;
  return text;
}

void say(const InitOptions& options, const DraftFacts& facts, const FittedDraft& fitted,
         const InitPlace& place) {
  const TierPlan& plan = fitted.plan;
  print_out("%s: %s parameters, %s on %s\n", facts.model.c_str(),
            format_count(facts.parameters).c_str(),
            facts.adapter ? (format_count(plan.trainable) + " more trained as adapters").c_str()
                          : "trained in full",
            trained_on(facts, place).c_str());
  print_out("  fits with %s: %s on the device, %s of host memory%s\n", fitted.words.c_str(),
            format_bytes(plan.device.total).c_str(), format_bytes(plan.host.total).c_str(),
            plan.drives.tier.state ? ", the rest on drives" : "");
  print_out("  a checkpoint is about %s, in %s\n", format_bytes(plan.checkpoint_bytes).c_str(),
            facts.run_directory.c_str());
  const std::string file = shell_quoted(options.file);
  if (const DraftFacts::Counted& counted = facts.counted; counted.left_out > 0) {
    print_out(
        "  %s of %s rows have more than %lld tokens and are left out; data.overlength = "
        "\"truncate\" keeps their beginning\n",
        format_count(counted.left_out).c_str(), format_count(counted.rows).c_str(),
        static_cast<long long>(counted.max_tokens));
  }
  print_out("written: %s; next\n", options.file.c_str());
  print_out("  longshore check data %s    # what is trained\n", file.c_str());
  std::string planned, launched;
  if (place.ranks > 1) {
    const std::string n = std::to_string(place.ranks);
    planned = "--ranks " + n + " --ranks-per-node " + n + " ";
    launched = "launch --nproc " + n + " -- ";
  }
  print_out("  longshore plan %s%s          # whether it fits, and how fast it is\n",
            planned.c_str(), file.c_str());
  print_out("  longshore %strain %s\n", launched.c_str(), file.c_str());
}

Json to_json(const std::vector<NotConverted>& list) {
  Json entries = Json::array();
  for (const NotConverted& entry : list) {
    entries.push_back({{"keys", entry.keys}, {"why", entry.why}});
  }
  return entries;
}

void say_not_converted(const char* heading, const std::vector<NotConverted>& list) {
  if (list.empty()) return;
  print_out("%s\n", heading);
  for (const NotConverted& entry : list) {
    print_out("  %s: %s\n", joined(entry.keys, ", ").c_str(), entry.why.c_str());
  }
}

int convert_other(const InitOptions& options) {
  const ConvertedRun run = convert_run_file(options.other, {.model = options.model,
                                                            .data = options.data,
                                                            .run_directory = options.run_directory,
                                                            .keys = keys_given(options.overrides)});
  write_output_file(options.file, run.draft.toml(printable(options.other)));
  if (options.json) {
    print_json({{"path", options.file},
                {"from", run.trainer},
                {"reminder", run.reminder},
                {"not_converted", to_json(run.left)},
                {"not_needed", to_json(run.needless)}});
    return 0;
  }
  say_not_converted("not converted, although it may change what is trained:", run.left);
  say_not_converted("not needed:", run.needless);
  if (!run.reminder.empty()) print_out("%s\n", run.reminder.c_str());
  print_out("written: %s, the run of %s's %s; next\n", options.file.c_str(), run.trainer.c_str(),
            options.other.c_str());
  const std::string file = shell_quoted(options.file);
  print_out("  longshore check run %s     # whether model and data can be read\n", file.c_str());
  print_out("  longshore check data %s    # what is trained\n", file.c_str());
  print_out("  longshore plan %s          # whether it fits, and how fast it is\n", file.c_str());
  return 0;
}

// An option with several values also takes the run file that is written behind them. Neither data
// nor drives end with .toml, so that name is the file.
void find_run_file(InitOptions& options) {
  for (std::vector<std::string>* values : {&options.data, &options.drives}) {
    if (values->empty() || !values->back().ends_with(".toml")) continue;
    options.file = values->back();
    values->pop_back();
  }
}

// Takes the keys that an option names too. An option and its key together are refused.
void take_keys(InitOptions& options, const RunConfig& config) {
  std::vector<std::string> problems;
  const auto take = [&](const char* option, auto& value, const char* key, const auto& given) {
    const bool has_key =
        std::ranges::find(options.overrides, key, &Override::key) != options.overrides.end();
    if (!has_key) return;
    if (!value.empty()) {
      problems.push_back("init: " + std::string(option) + " and --" + key +
                         " are two names for one thing; give one of them");
    }
    value = given;
  };
  take("--model", options.model, "model.path", config.model.path);
  take("--data", options.data, "data.train", config.data.train);
  take("--dir", options.run_directory, "run.dir", config.run.dir);
  take("--nvme", options.drives, "offload.nvme", config.offload.nvme);
  const bool no_adapter = std::ranges::any_of(options.overrides, [&config](const Override& said) {
    return said.key == "adapter.kind" && config.adapter.kind == AdapterSection::Kind::kNone;
  });
  if (options.adapter && no_adapter) {
    problems.push_back("init: --adapter asks for adapters, and --adapter.kind=none for none");
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

int run_init(const InitOptions& given) {
  InitOptions options = given;
  find_run_file(options);
  RunConfig config = load_run_config({}, options.overrides, {.complete = false});
  take_keys(options, config);
  if (fs::exists(options.file) && !options.replace) {
    throw ConfigError(options.file + ": exists already; name another file, or give --replace");
  }
  if (!options.other.empty()) return convert_other(options);
  const NamedText* recipe = recipe_of(options);
  if (recipe != nullptr && options.model.empty()) options.model = model_of(*recipe);
  if (options.model.empty()) {
    options.model = ask("--model", "model directory, or hub id in the local cache", check_model);
  }
  if (options.data.empty()) options.data = {ask("--data", "training file", check_data)};
  config.run.dir = options.run_directory.empty() ? "runs/" + fs::path(options.file).stem().string()
                                                 : options.run_directory;
  config.model.path = options.model;
  config.data.train = options.data;
  config.offload.nvme = options.drives;
  const InitPlace place = place_of(options, recipe);
  const DraftFacts facts = facts_of(options, recipe, config, place);
  FittedDraft fitted = fit(facts, place);
  if (is_searched(facts.goal)) fitted = search_goal(std::move(fitted), facts, place);
  write_output_file(options.file,
                    fitted.draft.toml(options.recipe.empty() ? "" : "recipe " + options.recipe));
  if (options.json) {
    print_json(to_json(options, facts, fitted, place));
  } else {
    say(options, facts, fitted, place);
  }
  return 0;
}

void add_init(CommandArguments command, CommandLine& line) {
  InitOptions& options = call_with_options(command, line, run_init);
  options.overrides = line.overrides;
  command.add_option("file", options.file, "the run file to write").show_default();
  command.add_option("--model", options.model, "model directory, or hub id in the local cache");
  command.add_option("--data", options.data, "training files, or hub ids of data sets");
  std::vector<std::string> goals;
  for (const NamedGoal& goal : kGoals) goals.emplace_back(goal.name);
  const CommandOption goal =
      command
          .add_option(
              "--goal", options.goal,
              "goal of the run file: balanced, exact (fp32 moments) or small (8-bit moments); with "
              "a search of plans: fastest, longest (sequences), or smallest (8-bit moments, lowest "
              "memory)")
          .one_of(goals)
          .show_default();
  const CommandOption recipe =
      command
          .add_option("--recipe", options.recipe,
                      "recipe to start from, MODEL_MACHINE; its model is the default of --model")
          .excludes(goal);
  const CommandOption adapter =
      command
          .add_flag("--adapter", options.adapter,
                    "train LoRA adapters over the frozen model instead of all parameters")
          .excludes(recipe);
  const CommandOption machine =
      command.add_option("--machine", options.machine,
                         "target machine, by name or file as in longshore plan --machine");
  command.add_option("--dir", options.run_directory,
                     "run.dir; default: runs/ and the name of the file");
  const CommandOption drives = command.add_option(
      "--nvme", options.drives, "one directory on each drive that may keep optimizer state");
  command
      .add_option("--from", options.other,
                  "convert this YAML or JSON file of Axolotl, LLaMA-Factory or TRL, and say what "
                  "could not be converted; --model, --data and --dir replace the file's")
      .excludes(goal)
      .excludes(recipe)
      .excludes(adapter)
      .excludes(machine)
      .excludes(drives);
  command.add_flag("--replace", options.replace, "overwrite an existing file");
  command.add_flag("--json", options.json,
                   "print the result and its memory use as one JSON object");
}

}  // namespace

extern const Command kInitCommand = {
    .group = CommandGroup::kTrain,
    .name = "init",
    .description = "write a run file for a model and data that fits this machine",
    .add = add_init};

}  // namespace longshore
