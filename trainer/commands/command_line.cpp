#include "trainer/commands/command_line.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <exception>
#include <functional>
#include <limits>
#include <new>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/errors.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/output.h"
#include "base/printable.h"
#include "comm/launcher.h"
#include "comm/rank_info.h"
#include "config/describe.h"
#include "config/overrides.h"
#include "model/init_presets.h"
#include "trainer/bench/bench_optimizer.h"
#include "trainer/bench/bench_overlap.h"
#include "trainer/commands/commands.h"

namespace longshore {
namespace {

constexpr const char* kExamples = R"(
examples:
  longshore init-model --preset tiny-llama models/tiny
  longshore plan run.toml
  longshore train run.toml --train.steps=200 --optimizer.lr=1e-4
  longshore launch --nproc 2 -- train run.toml
  longshore generate run.toml --prompt "DOG, n."
  longshore report runs/mine
  longshore export run.toml --to models/tuned
)";

// `--help=offload` shows one section of the run file.
constexpr std::string_view kSectionHelp = "--help=";

// More than any model or vocabulary has.
constexpr int64_t kMostTokens = int64_t{1} << 24;

// The commands' parsers write here; the chosen command's action runs after parsing.
struct Parsed {
  RunArguments run;
  std::function<int()> action;
  InitModelOptions init_model;
  VerifyOptions verify;
  TokenizerTrainOptions tokenizer;
  GenerateOptions generate;
  InspectDataOptions inspect;
  bool clean_cache = false;
  ExportCommandOptions exporting;
  PlanOptions plan;
  BenchOptimizerOptions bench_optimizer;
  BenchNvmeOptions bench_nvme;
  BenchOverlapOptions bench_overlap;
  BenchCopiesOptions bench_copies;
  std::string bench_size = "4GiB";
  LaunchOptions launch;
  std::string source = "auto";
  std::string section;
  std::string directory;
  std::string trace;
  ReportOptions report;
  bool json = false, defaults = false, difference = false, page = false;
  bool quiet = false, verbose = false;
  std::string log_level = "info", colour = "auto";
  int64_t keep = 2;
  AssumedRanks assumed;
  int gpu = 0;
};

// A number with its bounds, and its default in the help. CLI11's ranges let NaN pass.
template <typename Number, typename Value>
CLI::Option* add_number(CLI::App* command, const std::string& name, Value& value, Number least,
                        Number most, const std::string& help) {
  const auto check = [least, most](const std::string& text) -> std::string {
    Number number{};
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && at == end && number >= least && number <= most) return "";
    std::ostringstream bounds;
    bounds << "must be a" << (std::is_integral_v<Number> ? " whole" : "") << " number from "
           << least << " to " << most << ", not " << printable(text);
    return bounds.str();
  };
  return command->add_option(name, value, help)
      ->check(CLI::Validator(check, ""))
      ->capture_default_str();
}

CLI::App* add_run_command(CLI::App& app, Parsed& parsed, const std::string& name,
                          const std::string& sentence) {
  CLI::App* command = app.add_subcommand(name, sentence);
  command->add_option("files", parsed.run.files, "run files; a later one wins key by key")
      ->required();
  command->footer(
      "\nkeys of the run file, each also --section.key=value; --help=SECTION explains:\n" +
      help_overview());
  return command;
}

void add_source(CLI::App* command, std::string& source) {
  command
      ->add_option("--from", source,
                   "auto (newest valid checkpoint, else the model), model, or the directory of a "
                   "checkpoint, a run or a model")
      ->capture_default_str();
}

void add_model_commands(CLI::App& app, Parsed& parsed) {
  CLI::App* init = app.add_subcommand("init-model", "make a model directory with random weights");
  init->add_option("directory", parsed.init_model.directory, "a new directory")->required();
  std::string presets = "the architecture and its sizes:";
  for (const InitPreset& preset : init_presets()) presets += " " + std::string(preset.name);
  init->add_option("--preset", parsed.init_model.preset, presets)->capture_default_str();
  init->add_option("--text", parsed.init_model.text_files,
                   "train a tokenizer on these files; without them a token is a byte");
  add_number(init, "--vocabulary", parsed.init_model.vocabulary, int64_t{0}, kMostTokens,
             "tokens of the tokenizer; 0: as few as it needs");
  add_number(init, "--seed", parsed.init_model.seed, uint64_t{0},
             std::numeric_limits<uint64_t>::max(), "of the random weights");
  init->callback([&] { parsed.action = [&] { return run_init_model(parsed.init_model); }; });

  CLI::App* tokenizer = app.add_subcommand("tokenizer", "tokenizers");
  tokenizer->require_subcommand(1);
  CLI::App* train = tokenizer->add_subcommand("train", "byte-level BPE from text files");
  train->add_option("files", parsed.tokenizer.files, "text or JSON lines")->required();
  add_number(train, "--vocabulary", parsed.tokenizer.vocabulary, int64_t{1}, kMostTokens,
             "number of tokens");
  train->add_option("--to", parsed.tokenizer.output, "the file to write")->capture_default_str();
  train->callback([&] { parsed.action = [&] { return run_tokenizer_train(parsed.tokenizer); }; });
}

void add_verify_command(CLI::App& app, Parsed& parsed) {
  VerifyOptions& options = parsed.verify;
  CLI::App* verify = app.add_subcommand(
      "verify", "look at a model before training it: tensors, tokenizer, template, numbers");
  verify->add_option("model", options.model, "a directory, or a hub id in the local cache")
      ->required();
  verify->add_option("--against", options.against, "the model that it was made from");
  verify->add_option("--python", options.python,
                     "a Python with transformers, to compare the first layers with");
  add_number(verify, "--layers", options.layers, int64_t{0}, kMostTokens,
             "run the first so many layers; 0: all");
  add_number(verify, "--tokens", options.tokens, int64_t{1}, int64_t{1} << 16,
             "of the longest text that they are run on");
  verify->add_flag("--json", parsed.json, "as one JSON object");
  verify->callback([&] { parsed.action = [&] { return run_verify(parsed.verify, parsed.json); }; });
}

void add_run_commands(CLI::App& app, Parsed& parsed) {
  CLI::App* validate = add_run_command(app, parsed, "validate",
                                       "check everything that needs no memory; all errors at once");
  validate->callback([&] { parsed.action = [&] { return run_validate(parsed.run); }; });

  CLI::App* plan = add_run_command(app, parsed, "plan", "what lives where, and whether it fits");
  CLI::Option* json = plan->add_flag("--json", parsed.plan.json, "as one JSON object");
  plan->add_flag("--schedule", parsed.plan.schedule, "the operations of a training step instead")
      ->excludes(json);
  plan->add_option("--schedule-svg", parsed.plan.svg, "draw the schedule into this file");
  add_number(plan, "--ranks", parsed.assumed.ranks, 1, 1 << 20, "plan for so many ranks");
  add_number(plan, "--ranks-per-node", parsed.assumed.per_node, 1, 1 << 20,
             "that share a machine's memory");
  plan->callback(
      [&] { parsed.action = [&] { return run_plan(parsed.run, parsed.assumed, parsed.plan); }; });

  CLI::App* eval = add_run_command(app, parsed, "eval", "loss on data.eval");
  add_source(eval, parsed.source);
  eval->add_flag("--json", parsed.json, "as one JSON object");
  eval->callback(
      [&] { parsed.action = [&] { return run_eval(parsed.run, parsed.source, parsed.json); }; });

  CLI::App* generate = add_run_command(app, parsed, "generate", "text from prompts");
  generate->add_option("--prompt", parsed.generate.prompts, "may be given several times")
      ->required();
  add_source(generate, parsed.generate.source);
  add_number(generate, "--max-new-tokens", parsed.generate.max_new_tokens, int64_t{1}, kMostTokens,
             "tokens to add");
  add_number(generate, "--temperature", parsed.generate.temperature, 0.0, 1000.0,
             "0: the likeliest token");
  add_number(generate, "--top-k", parsed.generate.top_k, int64_t{0}, kMostTokens,
             "draw from so many of the likeliest tokens; 0: from all");
  add_number(generate, "--top-p", parsed.generate.top_p, 1e-6, 1.0,
             "draw from the likeliest tokens that have this share together; 1: from all");
  generate->add_flag("--json", parsed.generate.json, "one object per prompt and line");
  generate->callback(
      [&] { parsed.action = [&] { return run_generate(parsed.run, parsed.generate); }; });

  CLI::App* exporting = add_run_command(app, parsed, "export", "write a Hugging Face directory");
  exporting->add_option("--to", parsed.exporting.destination, "default: <run.dir>/hf");
  add_source(exporting, parsed.exporting.source);
  exporting->add_flag("--fp32", parsed.exporting.fp32, "weights as fp32 masters");
  exporting->add_flag("--allow-nonfinite", parsed.exporting.allow_nonfinite,
                      "write weights that are NaN or infinite too");
  exporting->callback(
      [&] { parsed.action = [&] { return run_export(parsed.run, parsed.exporting); }; });
}

void add_data_commands(CLI::App& app, Parsed& parsed) {
  CLI::App* prepare = add_run_command(app, parsed, "prepare", "tokenise the data into the cache");
  prepare->add_flag("--clean", parsed.clean_cache,
                    "remove all other prepared data that no run has open");
  prepare->callback(
      [&] { parsed.action = [&] { return run_prepare(parsed.run, parsed.clean_cache); }; });

  CLI::App* inspect = app.add_subcommand("inspect", "look at what a run is trained on");
  inspect->require_subcommand(1);
  CLI::App* data = add_run_command(*inspect, parsed, "data",
                                   "rows with their trained tokens, counts, lengths, packing");
  data->add_option("--rows", parsed.inspect.rows, "which rows, such as 0:10");
  data->add_option("--html", parsed.inspect.html, "write it as a page to this file");
  data->add_flag("--json", parsed.inspect.json, "one object per row and line");
  data->add_flag("--eval", parsed.inspect.evaluation, "data.eval instead of data.train");
  data->callback(
      [&] { parsed.action = [&] { return run_inspect_data(parsed.run, parsed.inspect); }; });

  CLI::App* tokenize = app.add_subcommand(
      "tokenize", "JSON strings from standard input, one per line, as arrays of ids");
  tokenize->add_option("directory", parsed.directory, "of the tokenizer")->required();
  tokenize->callback([&] { parsed.action = [&] { return run_tokenize(parsed.directory); }; });
}

void add_train_command(CLI::App& app, Parsed& parsed, const std::vector<std::string>& arguments) {
  CLI::App* train = add_run_command(app, parsed, "train", "the run");
  train->add_option("--trace", parsed.trace,
                    "write a timeline of every copy, collective, computation and "
                    "update, for Perfetto; *.svg: a picture of the last step");
  train->callback([&parsed, &arguments] {
    parsed.action = [&parsed, &arguments] {
      return run_train(parsed.run, arguments, parsed.trace);
    };
  });
  CLI::App* plot = app.add_subcommand("plot", "draw a run's loss curve in the terminal");
  plot->add_option("directory", parsed.directory, "the run's directory")->required();
  plot->callback([&] { parsed.action = [&] { return run_plot(parsed.directory); }; });
  CLI::App* report =
      app.add_subcommand("report", "a page about a run, or about several in the same charts");
  report->add_option("runs", parsed.report.directories, "directories of runs (run.dir)")
      ->required();
  report->add_option("--to", parsed.report.html, "the page; default: report.html in the first run");
  report->callback([&] { parsed.action = [&] { return run_report(parsed.report); }; });
  CLI::App* gpu_check =
      app.add_subcommand("gpu-check", "compare a GPU with the CPU; runs do it before they use one");
  add_number(gpu_check, "--gpu", parsed.gpu, 0, 1023, "its number");
  gpu_check->callback([&] { parsed.action = [&] { return run_gpu_check(parsed.gpu); }; });
  CLI::App* version = app.add_subcommand("version", "version, libraries, what the CPU can do");
  version->callback([&] { parsed.action = [] { return run_version(); }; });
}

void add_launch_command(CLI::App& app, Parsed& parsed) {
  CLI::App* launch =
      app.add_subcommand("launch", "start ranks on this node: launch [options] -- COMMAND...");
  add_number(launch, "--nproc", parsed.launch.ranks, 1, 1 << 16, "ranks on this node")->required();
  add_number(launch, "--nnodes", parsed.launch.nodes, 1, 1 << 16, "nodes");
  add_number(launch, "--node-rank", parsed.launch.node, 0, (1 << 16) - 1, "this node, from 0");
  launch->add_option("--rendezvous", parsed.launch.rendezvous,
                     "HOST:PORT where node 0 serves the store; needed with several nodes");
  launch->callback([&] { parsed.action = [&] { return launch_ranks(parsed.launch); }; });
}

// The arguments after "--" of `launch`: those of each rank, overrides included.
std::vector<std::string> take_rank_command(std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "launch") return {};
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  if (dashes == arguments.end()) return {};
  std::vector<std::string> command(dashes + 1, arguments.end());
  arguments.erase(dashes, arguments.end());
  return command;
}

void add_config_commands(CLI::App& app, Parsed& parsed) {
  CLI::App* config = app.add_subcommand("config", "the run file's keys");
  config->require_subcommand(1);
  CLI::App* dump = config->add_subcommand("dump", "the resolved run file");
  dump->add_option("files", parsed.run.files, "run files");
  dump->add_flag("--defaults", parsed.defaults, "all keys with their defaults");
  dump->add_flag("--diff", parsed.difference, "only keys that differ from their defaults");
  dump->callback([&] {
    parsed.action = [&] { return run_config_dump(parsed.run, parsed.defaults, parsed.difference); };
  });
  CLI::App* keys = config->add_subcommand("keys", "type, default, bounds and meaning of each key");
  keys->add_option("section", parsed.section, "only this section");
  keys->add_flag("--page", parsed.page, "all of them as a page in Markdown");
  keys->callback(
      [&] { parsed.action = [&] { return run_config_keys(parsed.section, parsed.page); }; });
  CLI::App* schema = config->add_subcommand("schema", "JSON Schema for editors");
  schema->callback([&] { parsed.action = [] { return run_config_schema(); }; });
}

void add_checkpoint_commands(CLI::App& app, Parsed& parsed) {
  CLI::App* checkpoint = app.add_subcommand("ckpt", "a run's checkpoints");
  checkpoint->require_subcommand(1);
  CLI::App* list = add_run_command(*checkpoint, parsed, "ls", "list them");
  list->add_flag("--json", parsed.json, "as JSON");
  list->callback(
      [&] { parsed.action = [&] { return run_checkpoint_list(parsed.run, parsed.json); }; });
  CLI::App* verify = add_run_command(*checkpoint, parsed, "verify", "check every checksum");
  verify->add_flag("--json", parsed.json, "as JSON");
  verify->callback(
      [&] { parsed.action = [&] { return run_checkpoint_verify(parsed.run, parsed.json); }; });
  CLI::App* prune = add_run_command(*checkpoint, parsed, "prune",
                                    "delete all but the newest, and abandoned ones");
  add_number(prune, "--keep", parsed.keep, 1, 1 << 30, "how many to keep");
  prune->callback(
      [&] { parsed.action = [&] { return run_checkpoint_prune(parsed.run, parsed.keep); }; });
}

void add_bench_optimizer(CLI::App& bench, Parsed& parsed) {
  BenchOptimizerOptions& options = parsed.bench_optimizer;
  CLI::App* optimizer = bench.add_subcommand(
      "optimizer", "parameters per second of the update, and its share of the memory bound");
  optimizer->add_option("--format", options.formats, "state formats; default: all");
  add_number(optimizer, "--threads", options.threads, 1, 1 << 12,
             "thread counts; default: 1, 2, 4, ... up to the physical cores");
  add_number(optimizer, "--parameters", options.elements, int64_t{1}, int64_t{1} << 40,
             "of the matrix that is updated");
  add_number(optimizer, "--rounds", options.rounds, int64_t{1}, int64_t{1} << 20,
             "of update and bound in turn");
  optimizer->add_option("--simd", options.simd,
                        "instructions of the update, \"avx2\" for instance; default: the best");
  optimizer->add_flag("--json", options.json, "as one JSON object");
  optimizer->callback([&parsed] {
    parsed.action = [&parsed] { return run_bench_optimizer(parsed.bench_optimizer); };
  });
}

void add_bench_nvme(CLI::App& bench, Parsed& parsed) {
  BenchNvmeOptions& options = parsed.bench_nvme;
  CLI::App* nvme = bench.add_subcommand("nvme", "drives: block size, depth, GB/s, CPU");
  nvme->add_option("--dir", options.directories, "one directory on each drive")->required();
  nvme->add_option("--size", parsed.bench_size, "of the scratch file, for example 4GiB");
  add_number(nvme, "--seconds", options.seconds, 0.05, 600.0, "of each round");
  nvme->add_flag("--json", options.json, "as JSON");
  nvme->callback([&parsed] {
    const std::optional<Bytes> size = parse_bytes(parsed.bench_size);
    if (!size || *size <= 0) throw ConfigError("--size " + parsed.bench_size + ": not a size");
    parsed.bench_nvme.file_bytes = *size;
    parsed.action = [&parsed] { return run_bench_nvme(parsed.bench_nvme); };
  });
}

void add_bench_overlap(CLI::App& bench, Parsed& parsed) {
  BenchOverlapOptions& options = parsed.bench_overlap;
  CLI::App* overlap = bench.add_subcommand(
      "overlap", "time of a step of timers, as the real schedule runs it, against its bound");
  add_number(overlap, "--ratios", options.ratios, 0.0, 1000.0,
             "of other lanes to compute; all combinations");
  add_number(overlap, "--ranks", options.ranks, 1, 64, "threads that stand for ranks");
  add_number(overlap, "--units", options.units, 1, 1 << 14, "of the model");
  add_number(overlap, "--unit-ms", options.unit_milliseconds, 0.001, 1e6, "forward of a unit");
  add_number(overlap, "--prefetch", options.prefetch, int64_t{0}, int64_t{8},
             "units ahead; 0: 1, with several ranks 2");
  add_number(overlap, "--steps", options.steps, 1, 1 << 20, "measured for each combination");
  overlap->add_flag("--peers", options.peers, "FSDP2's and DeepSpeed's schedules beside ours");
  overlap->add_flag("--simulate", options.simulate, "run nothing: an executor without cost");
  overlap->add_flag("--json", options.json, "as JSON");
  overlap->callback(
      [&parsed] { parsed.action = [&parsed] { return run_bench_overlap(parsed.bench_overlap); }; });
}

void add_bench_copies(CLI::App& bench, Parsed& parsed) {
  CLI::App* copies = bench.add_subcommand("copies", "the host's memory to a GPU and back: GB/s");
  add_number(copies, "--gpu", parsed.bench_copies.gpu, 0, 1023, "its number");
  copies->add_flag("--json", parsed.bench_copies.json, "the same as JSON");
  copies->callback(
      [&parsed] { parsed.action = [&parsed] { return run_bench_copies(parsed.bench_copies); }; });
}

void add_bench_commands(CLI::App& app, Parsed& parsed) {
  CLI::App* bench = app.add_subcommand("bench", "measure this machine");
  bench->require_subcommand(1);
  add_bench_optimizer(*bench, parsed);
  add_bench_nvme(*bench, parsed);
  add_bench_overlap(*bench, parsed);
  add_bench_copies(*bench, parsed);
}

// Of every command, before or behind its name.
void add_log_options(CLI::App& app, Parsed& parsed) {
  app.fallthrough();
  app.add_flag("-q,--quiet", parsed.quiet, "warnings and errors only");
  app.add_flag("-v,--verbose", parsed.verbose, "more than usual");
  app.add_option("--log-level", parsed.log_level, "of messages on standard error")
      ->check(CLI::IsMember({"error", "warning", "info", "debug"}))
      ->capture_default_str();
  app.add_option("--color,--colour", parsed.colour, "of those messages")
      ->check(CLI::IsMember({"auto", "never", "always"}))
      ->capture_default_str();
}

void apply_log_options(const Parsed& parsed) {
  LogLevel level = parse_log_level(parsed.log_level).value_or(LogLevel::kInfo);
  if (parsed.quiet) level = std::min(level, LogLevel::kWarning);
  if (parsed.verbose) level = LogLevel::kDebug;
  set_log_level(level);
  set_log_colour(parsed.colour == "never"    ? LogColour::kNever
                 : parsed.colour == "always" ? LogColour::kAlways
                                             : LogColour::kAuto);
}

// "help train" is "train --help", and nothing at all is a question too.
std::vector<std::string> spelled_out(std::vector<std::string> arguments) {
  if (arguments.empty()) return {"--help"};
  if (arguments.front() == "--version" || arguments.front() == "-V") arguments.front() = "version";
  if (arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

// Names the command that was meant, where the words are none.
void check_command(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  bool value = false;  // of the option before it
  for (const std::string& word : words) {
    if (std::exchange(value, word == "--log-level" || word == "--color" || word == "--colour") ||
        word.starts_with('-')) {
      continue;
    }
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const CLI::App* command : at->get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
      if (names.back() == word) next = command;
    }
    if (names.empty()) return;  // words are arguments from here on
    if (next == nullptr) {
      const std::string meant = nearest_name(word, names);
      throw ConfigError("unknown command '" + printable(word) + "'" +
                        (meant.empty() ? "" : ", did you mean '" + meant + "'?") +
                        " (longshore --help lists them)");
    }
    at = next;
  }
}

// Under a launcher all ranks train. Everything else is done once, by the first rank, and what is
// tokenised once on each node.
bool is_for_this_rank(const CLI::App& app) {
  for (const char* const command : {"train", "launch", "gpu-check"}) {
    if (app.got_subcommand(command)) return true;
  }
  const RankInfo ranks = discover_ranks();
  if (ranks.rank == 0) return true;
  return app.got_subcommand("prepare") && ranks.local_size > 0 && ranks.local_rank == 0;
}

int parse_and_run(std::vector<std::string> arguments) {
  const std::vector<std::string> rank_command = take_rank_command(arguments);
  arguments = spelled_out(std::move(arguments));
  for (const std::string& argument : arguments) {
    if (!argument.starts_with(kSectionHelp)) continue;
    print_out("%s", help_text(argument.substr(kSectionHelp.size())).c_str());
    return 0;
  }
  SplitArguments split = split_overrides(arguments);
  CLI::App app("Longshore: fine-tunes models that are larger than the GPU.", "longshore");
  app.footer(kExamples);
  app.require_subcommand(1);
  Parsed parsed;
  parsed.run.overrides = split.overrides;
  parsed.launch.command = rank_command;
  add_log_options(app, parsed);  // first: commands take over how they look for options
  add_train_command(app, parsed, arguments);
  add_run_commands(app, parsed);
  add_model_commands(app, parsed);
  add_verify_command(app, parsed);
  add_data_commands(app, parsed);
  add_config_commands(app, parsed);
  add_checkpoint_commands(app, parsed);
  add_bench_commands(app, parsed);
  add_launch_command(app, parsed);
  check_command(app, split.rest);
  try {
    std::vector<std::string> reversed(split.rest.rbegin(), split.rest.rend());
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      throw ConfigError(std::string(error.what()) + " (--help explains)");
    }
    std::ostringstream help, none;
    app.exit(error, help, none);
    print_raw(help.str());
    flush_output();
    return 0;
  }
  if (!is_for_this_rank(app)) return 0;
  apply_log_options(parsed);
  const int exit_code = parsed.action();
  flush_output();
  return exit_code;
}

}  // namespace

int run_command_line(const std::vector<std::string>& arguments) {
  try {
    return parse_and_run(arguments);
  } catch (const ConfigError& error) {
    for (const std::string& problem : error.problems()) log_error(problem);
    return static_cast<int>(error.exit_code());
  } catch (const Error& error) {
    log_error(error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::bad_alloc&) {
    log_error(
        "host memory ran out; lower offload.host_memory or the sizes that `longshore plan` "
        "lists under host");
    return static_cast<int>(ExitCode::kOutOfMemory);
  } catch (const std::exception& error) {
    log_error(error.what());
    return static_cast<int>(ExitCode::kFailure);
  }
}

}  // namespace longshore
