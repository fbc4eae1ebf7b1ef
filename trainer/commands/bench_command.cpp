// The `bench` command runs the measurements of trainer/bench on this machine.
#include <optional>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/texts.h"
#include "trainer/bench/bench_nvme.h"
#include "trainer/bench/bench_optimizer.h"
#include "trainer/bench_run/bench_recipe.h"
#include "trainer/bench_run/bench_run.h"
#include "trainer/commands/command.h"

namespace longshore {
namespace {

void add_bench_optimizer(CommandArguments bench, CommandLine& line) {
  CommandArguments optimizer = bench.add_subcommand(
      "optimizer", "measure the optimizer update: parameters/s and share of the memory bound");
  BenchOptimizerOptions& options = call_with_options(optimizer, line, run_bench_optimizer);
  optimizer.add_option("--format", options.formats, "state formats to measure; default: all");
  optimizer.add_number("--threads", options.threads, 1, 1 << 12,
                       "thread counts to measure; default: 1, 2, 4, ... up to the physical cores");
  optimizer.add_number("--parameters", options.elements, 1, int64_t{1} << 40,
                       "number of parameters in the matrix that is updated");
  optimizer.add_number("--rounds", options.rounds, 1, int64_t{1} << 20,
                       "number of rounds; each measures the update and the memory bound");
  optimizer.add_option("--simd", options.simd,
                       "instruction set of the update, for example \"avx2\"; default: the best");
  optimizer.add_flag("--json", options.json, "print the result as one JSON object");
}

struct SizedBenchNvmeOptions : BenchNvmeOptions {
  std::string size = "4GiB";
};

int run_sized_bench_nvme(const SizedBenchNvmeOptions& options) {
  const std::optional<Bytes> size = parse_bytes(options.size);
  if (!size || *size <= 0) throw ConfigError("--size " + options.size + ": not a size");
  BenchNvmeOptions sized = options;
  sized.file_bytes = *size;
  return run_bench_nvme(sized);
}

void add_bench_nvme(CommandArguments bench, CommandLine& line) {
  CommandArguments nvme = bench.add_subcommand(
      "nvme", "measure drives: GB/s and CPU time by block size and queue depth");
  SizedBenchNvmeOptions& options = call_with_options(nvme, line, run_sized_bench_nvme);
  nvme.add_option("--dir", options.directories, "one directory on each drive").required();
  nvme.add_option("--size", options.size, "size of the scratch file, for example 4GiB");
  nvme.add_number("--seconds", options.seconds, 0.05, 600.0, "duration of each round");
  nvme.add_flag("--json", options.json, "print the result as JSON");
}

void add_bench_files(CommandArguments bench, CommandLine& line) {
  CommandArguments files = bench.add_subcommand(
      "files", "measure reading a model's files, as offload.parameters = \"files\" does: GB/s");
  BenchFilesOptions& options = call_with_options(files, line, run_bench_files);
  files.add_option("model", options.model, "the model's directory").required();
  files.add_number("--rounds", options.rounds, 1, 1 << 10, "passes over the whole model");
  files.add_number("--seconds", options.seconds, 0.05, 600.0, "duration of each round of fio");
  files.add_flag("--json", options.json, "print the result as one JSON object");
}

void add_bench_copies(CommandArguments bench, CommandLine& line) {
  CommandArguments copies =
      bench.add_subcommand("copies", "measure copies between host memory and a GPU: GB/s");
  BenchCopiesOptions& options = call_with_options(copies, line, run_bench_copies);
  copies.add_number("--gpu", options.gpu, 0, 1023, "number of the GPU");
  copies.add_flag("--json", options.json, "print the result as JSON");
}

void add_bench_run(CommandArguments bench, CommandLine& line) {
  CommandArguments run = bench.add_subcommand(
      "run", "train a fixed recipe for a few steps: plan beside measurement, as one JSON row");
  BenchRunOptions& options = call_with_options(run, line, run_bench_run, CommandRanks::kAll);
  run.add_option("recipe", options.recipe, "the recipe:" + names_of(bench_run_files()));
  run.add_flag("--list", options.list,
               "show what every recipe needs on this machine, and which fit");
  run.add_option("--model", options.model,
                 "directory of the recipe's model; default: random weights made in memory");
  run.add_option(
      "--device-memory", options.device_memory,
      "device memory that the run may use, for example 24GiB; default: all that is free");
  run.add_option("--host-memory", options.host_memory, "host memory that it may use, the same");
  run.add_number("--steps", options.steps, 4, 1000, "number of optimizer steps");
  run.add_option("--nvme", options.nvme,
                 "a directory on each drive that may hold what host memory has no room for; "
                 "without it nothing of more than 1 GiB is written");
  run.add_option("--out", options.out, "also append the row to this file");
  run.add_option("--keep", options.keep, "run directory that is kept; default: a temporary one");
  run.add_flag("--tiny", options.tiny, "tiny shapes of the recipe's family, to try the command");
}

void add_bench(CommandArguments command, CommandLine& line) {
  command.require_subcommand();
  add_bench_run(command, line);
  add_bench_optimizer(command, line);
  add_bench_nvme(command, line);
  add_bench_files(command, line);
  add_bench_copies(command, line);
}

}  // namespace

extern const Command kBenchCommand = {.group = CommandGroup::kLook,
                                      .name = "bench",
                                      .description = "benchmarks of this machine",
                                      .add = add_bench};

}  // namespace longshore
