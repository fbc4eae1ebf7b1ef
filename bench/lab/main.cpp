// longshore_lab: measures and compares schedules outside of the main program. Its subcommands make
// the values of docs/measurements/overlap.md, plan_time.md, scaling.md and gpu_roofline.md.
#include <CLI/CLI.hpp>

#include <exception>
#include <iostream>

#include "bench/lab/drawn_plans.h"
#include "bench/lab/overlap.h"
#include "bench/lab/roofline.h"
#include "bench/lab/scaling.h"

namespace longshore {
namespace {

CLI::App* add_overlap(CLI::App& app, LabOverlapOptions& options) {
  CLI::App* overlap = app.add_subcommand(
      "overlap", "the time of a step of timers, as the real schedule runs it, against its bound");
  overlap->add_option("--ratios", options.ratios, "time of the other lanes over that of compute")
      ->check(CLI::Range(0.0, 1000.0));
  overlap->add_option("--ranks", options.ranks, "threads that stand for ranks")
      ->check(CLI::Range(1, 64));
  overlap->add_option("--units", options.units, "units of the model")
      ->check(CLI::Range(1, 1 << 14));
  overlap->add_option("--unit-ms", options.unit_milliseconds, "forward of a unit")
      ->check(CLI::Range(0.001, 1e6));
  overlap->add_option("--prefetch", options.prefetch, "units ahead; 0: 1, with several ranks 2")
      ->check(CLI::Range(0, 8));
  overlap->add_option("--steps", options.steps, "steps measured for each combination")
      ->check(CLI::Range(1, 1 << 20));
  overlap->add_flag("--peers", options.peers, "also FSDP2's and DeepSpeed's schedules");
  overlap->add_flag("--simulate", options.simulate, "simulate only, run no timers");
  overlap->add_flag("--json", options.json, "print JSON");
  return overlap;
}

CLI::App* add_plans(CLI::App& app, LabPlanOptions& options) {
  CLI::App* plan = app.add_subcommand(
      "plans", "the forecast of drawn plans beside steps of timers that run them");
  plan->add_option("--plans", options.plans, "plans drawn, a cover of all pairs of keys")
      ->check(CLI::Range(1, 1 << 16));
  plan->add_option("--step-ms", options.step_milliseconds, "time of each plan's step")
      ->check(CLI::Range(1.0, 1e6));
  plan->add_option("--steps", options.steps, "steps measured of each plan")
      ->check(CLI::Range(1, 1 << 16));
  plan->add_option("--in-turn", options.in_turn, "plans of which a step each is run in turn")
      ->check(CLI::Range(1, 100));
  plan->add_option("--seed", options.seed, "seed of the draws");
  plan->add_flag("--json", options.json, "print JSON");
  return plan;
}

CLI::App* add_scaling(CLI::App& app, LabScalingOptions& options) {
  CLI::App* scaling =
      app.add_subcommand("scaling", "many ranks, simulated: 8 GPUs, and up to 64 nodes");
  scaling->add_option("--tokens", options.tokens, "tokens of each rank in a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  scaling->add_option("--jitter", options.jitter, "every operation takes up to this share longer")
      ->check(CLI::Range(0.0, 10.0));
  scaling->add_option("--slow-rank", options.slow_rank, "one rank computes this share longer")
      ->check(CLI::Range(0.0, 10.0));
  scaling->add_flag("--json", options.json, "print JSON");
  return scaling;
}

int run(int argc, char** argv) {
  CLI::App app("longshore_lab: schedules measured beside the program");
  app.require_subcommand(1);
  LabOverlapOptions overlap_options;
  LabPlanOptions plan_options;
  LabScalingOptions scaling_options;
  const CLI::App* overlap = add_overlap(app, overlap_options);
  const CLI::App* plans = add_plans(app, plan_options);
  const CLI::App* scaling = add_scaling(app, scaling_options);
  app.add_subcommand("roofline", "prints the tables of docs/measurements/gpu_roofline.md");
  CLI11_PARSE(app, argc, argv);
  if (overlap->parsed()) return run_lab_overlap(overlap_options);
  if (plans->parsed()) return run_lab_plans(plan_options);
  if (scaling->parsed()) return run_lab_scaling(scaling_options);
  return run_lab_roofline();
}

}  // namespace
}  // namespace longshore

int main(int argc, char** argv) {
  try {
    return longshore::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
