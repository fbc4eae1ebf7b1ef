// bench: this machine, measured; trainer/bench measures.
#include <limits>
#include <optional>

#include "base/bytes.h"
#include "base/errors.h"
#include "trainer/bench/bench_copies.h"
#include "trainer/bench/bench_nvme.h"
#include "trainer/bench/bench_optimizer.h"
#include "trainer/bench/bench_overlap.h"
#include "trainer/bench/bench_plan.h"
#include "trainer/bench/bench_scaling.h"
#include "trainer/commands/command.h"

namespace longshore {
namespace {

void add_bench_optimizer(CommandArguments bench, CommandLine& line) {
  CommandArguments optimizer = bench.add_subcommand(
      "optimizer", "parameters per second of the update, and its share of the memory bound");
  BenchOptimizerOptions& options = call_with_options(optimizer, line, run_bench_optimizer);
  optimizer.add_option("--format", options.formats, "state formats; default: all");
  optimizer.add_number("--threads", options.threads, 1, 1 << 12,
                       "thread counts; default: 1, 2, 4, ... up to the physical cores");
  optimizer.add_number("--parameters", options.elements, 1, int64_t{1} << 40,
                       "of the matrix that is updated");
  optimizer.add_number("--rounds", options.rounds, 1, int64_t{1} << 20,
                       "of update and bound in turn");
  optimizer.add_option("--simd", options.simd,
                       "instructions of the update, \"avx2\" for instance; default: the best");
  optimizer.add_flag("--json", options.json, "as one JSON object");
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
  CommandArguments nvme = bench.add_subcommand("nvme", "drives: block size, depth, GB/s, CPU");
  SizedBenchNvmeOptions& options = call_with_options(nvme, line, run_sized_bench_nvme);
  nvme.add_option("--dir", options.directories, "one directory on each drive").required();
  nvme.add_option("--size", options.size, "of the scratch file, for example 4GiB");
  nvme.add_number("--seconds", options.seconds, 0.05, 600.0, "of each round");
  nvme.add_flag("--json", options.json, "as JSON");
}

void add_bench_overlap(CommandArguments bench, CommandLine& line) {
  CommandArguments overlap = bench.add_subcommand(
      "overlap", "time of a step of timers, as the real schedule runs it, against its bound");
  BenchOverlapOptions& options = call_with_options(overlap, line, run_bench_overlap);
  overlap.add_number("--ratios", options.ratios, 0.0, 1000.0,
                     "of other lanes to compute; all combinations");
  overlap.add_number("--ranks", options.ranks, 1, 64, "threads that stand for ranks");
  overlap.add_number("--units", options.units, 1, 1 << 14, "of the model");
  overlap.add_number("--unit-ms", options.unit_milliseconds, 0.001, 1e6, "forward of a unit");
  overlap.add_number("--prefetch", options.prefetch, 0, int64_t{8},
                     "units ahead; 0: 1, with several ranks 2");
  overlap.add_number("--steps", options.steps, 1, 1 << 20, "measured for each combination");
  overlap.add_flag("--peers", options.peers, "FSDP2's and DeepSpeed's schedules beside ours");
  overlap.add_flag("--simulate", options.simulate, "run nothing: an executor without cost");
  overlap.add_flag("--json", options.json, "as JSON");
}

void add_bench_plan(CommandArguments bench, CommandLine& line) {
  CommandArguments plan = bench.add_subcommand(
      "plan", "steps of timers as plans say they take, beside what they take, over all keys");
  BenchPlanOptions& options = call_with_options(plan, line, run_bench_plan);
  plan.add_number("--plans", options.plans, 1, 1 << 16, "drawn, a cover of all keys");
  plan.add_number("--step-ms", options.step_milliseconds, 1.0, 1e6, "of each plan's step");
  plan.add_number("--steps", options.steps, 1, 1 << 16, "measured of each plan");
  plan.add_number("--in-turn", options.in_turn, 1, 100, "plans of which a step each is run");
  plan.add_number("--seed", options.seed, 0, std::numeric_limits<uint32_t>::max(),
                  "of what is drawn");
  plan.add_flag("--json", options.json, "as JSON");
}

void add_bench_scaling(CommandArguments bench, CommandLine& line) {
  CommandArguments scaling = bench.add_subcommand(
      "scaling", "many ranks on paper: what 8 GPUs, or 64 nodes, do of what one does");
  BenchScalingOptions& options = call_with_options(scaling, line, run_bench_scaling);
  scaling.add_number("--tokens", options.tokens, 1, int64_t{1} << 30, "of each rank, in a step");
  scaling.add_number("--jitter", options.jitter, 0.0, 10.0,
                     "every operation takes up to so much of itself longer");
  scaling.add_number("--slow-rank", options.slow_rank, 0.0, 10.0,
                     "one rank computes so much longer");
  scaling.add_flag("--json", options.json, "as JSON");
}

void add_bench_copies(CommandArguments bench, CommandLine& line) {
  CommandArguments copies =
      bench.add_subcommand("copies", "the host's memory to a GPU and back: GB/s");
  BenchCopiesOptions& options = call_with_options(copies, line, run_bench_copies);
  copies.add_number("--gpu", options.gpu, 0, 1023, "its number");
  copies.add_flag("--json", options.json, "the same as JSON");
}

void add_bench(CommandArguments command, CommandLine& line) {
  command.require_subcommand();
  add_bench_optimizer(command, line);
  add_bench_nvme(command, line);
  add_bench_overlap(command, line);
  add_bench_plan(command, line);
  add_bench_scaling(command, line);
  add_bench_copies(command, line);
}

}  // namespace

extern const Command kBenchCommand = {.group = CommandGroup::kLook,
                                      .name = "bench",
                                      .sentence = "measure this machine",
                                      .add = add_bench};

}  // namespace longshore
