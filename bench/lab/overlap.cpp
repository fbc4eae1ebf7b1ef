#include "bench/lab/overlap.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/errors.h"
#include "base/json.h"
#include "base/measurement.h"
#include "bench/lab/timer_run.h"
#include "nvme/store/nvme_store.h"
#include "offload/schedule/schedule_simulation.h"

namespace longshore {
namespace {

constexpr double kBackwardOfForward = 3.0;
constexpr double kOtherLanesBesideUpdates = 0.5;
constexpr std::array<double, 3> kOtherLanesBesideDrives = {0.25, 1.0, 4.0};
constexpr double kParametersOfState = 0.25;
constexpr double kFsdp2CopyBytes = 2.0;
constexpr double kDeepSpeedDrainBytes = 8.0 / 2.0;
constexpr double kDeepSpeedUpdateBytes = 42.0 / 28.0;

void check_options(const LabOverlapOptions& options) {
  std::vector<std::string> problems;
  for (double ratio : options.ratios) {
    if (!(ratio >= 0.0 && ratio <= 100.0)) problems.push_back("--ratios: each from 0 to 100");
  }
  for (int32_t ranks : options.ranks) {
    if (ranks < 1 || ranks > 8) problems.push_back("--ranks: each from 1 to 8");
  }
  if (options.units < 2 || options.units > 10000) problems.push_back("--units: from 2 to 10000");
  if (!(options.unit_milliseconds > 0.0 && options.unit_milliseconds <= 10000.0)) {
    problems.push_back("--unit-ms: above 0, at most 10000");
  }
  if (options.steps < 1) problems.push_back("--steps: at least 1");
  if (options.prefetch < 0) problems.push_back("--prefetch: at least 0");
  if (!problems.empty()) throw ConfigError(problems);
}

StepSeconds measure(const TimedStep& step, const LabOverlapOptions& options, int32_t ranks) {
  StepSeconds seconds;
  seconds.simulated = simulate_schedule(step.schedule, step.seconds).seconds;
  if (options.simulate) return seconds;
  TimerRun run(&step, {.ranks = ranks});
  run.step_seconds();  // warm-up: first use of threads and slots
  std::vector<double> steps;
  for (int32_t i = 0; i < options.steps; ++i) steps.push_back(run.step_seconds());
  seconds.measured = median_of(steps);
  return seconds;
}

// ---- Text ----

double milliseconds(const StepSeconds& step) {
  return step.best_known() * 1e3;
}

void print_overlap(const std::vector<OverlapFigures>& all) {
  std::printf("lanes as shares of compute; ms; shares of the bounds\n");
  std::printf("%5s %6s %6s %8s %9s %8s %9s %8s %8s %9s  %s\n", "ranks", "fetch", "update",
              "gradient", "roofline", "filled", "simulated", "measured", "/filled", "/roofline",
              "busiest lanes");
  for (const OverlapFigures& f : all) {
    std::printf("%5d %6.2f %6.2f %8.2f %9.1f %8.1f %9.1f %8.1f %8.3f %9.3f  %s\n", f.point.ranks,
                f.point.fetch, f.point.update, f.point.gradient, f.bound.pure * 1e3,
                f.bound.filled * 1e3, f.step.simulated * 1e3, f.step.measured.value_or(0.0) * 1e3,
                f.step.best_known() / f.bound.filled, f.step.best_known() / f.bound.pure,
                f.bound.wall.c_str());
  }
  std::vector<double> shares;
  for (const OverlapFigures& f : all) shares.push_back(f.step.best_known() / f.bound.filled);
  if (shares.empty()) return;
  std::printf("%zu combinations: median %.3f, most %.3f of the bound once filled\n", shares.size(),
              median_of(shares), std::ranges::max(shares));
}

std::string ratio_text(const std::optional<double>& ratio) {
  std::array<char, 16> text{};
  if (ratio) std::snprintf(text.data(), text.size(), "%.2f", *ratio);
  return text.data();
}

void print_drives(const std::vector<OverlapFigures>& all) {
  std::printf(
      "\nwith drives; lanes as shares of compute; ms; shares of the bounds\n"
      "%5s %6s %6s %6s %10s %8s %9s %8s %8s  %s\n",
      "ranks", "other", "read", "write", "parameters", "filled", "simulated", "measured", "/filled",
      "busiest lanes");
  std::vector<double> shares;
  for (const OverlapFigures& f : all) {
    shares.push_back(f.step.best_known() / f.bound.filled);
    std::printf(
        "%5d %6.2f %6s %6s %10s %8.1f %9.1f %8.1f %8.3f  %s\n", f.point.ranks, f.point.fetch,
        ratio_text(f.point.read_state).c_str(), ratio_text(f.point.write_state).c_str(),
        ratio_text(f.point.read_parameters).c_str(), f.bound.filled * 1e3, f.step.simulated * 1e3,
        f.step.measured.value_or(0.0) * 1e3, shares.back(), f.bound.wall.c_str());
  }
  if (shares.empty()) return;
  std::printf("%zu combinations: median %.3f, most %.3f of the bound once filled\n", shares.size(),
              median_of(shares), std::ranges::max(shares));
}

void print_updates(const std::vector<UpdateFigures>& all) {
  std::printf("\ndeferred updates; ms\n%5s %6s %8s %8s %8s %8s\n", "ranks", "update", "updates",
              "without", "with", "exposed");
  for (const UpdateFigures& f : all) {
    std::printf("%5d %6.2f %8.1f %8.1f %8.1f %8.1f\n", f.ranks, f.update, f.update_seconds * 1e3,
                milliseconds(f.without), milliseconds(f.with), f.exposed() * 1e3);
  }
}

void print_peers(const std::vector<PeerFigures>& all) {
  std::printf(
      "\nother schedules, the same timers; ms; last two: with the bytes that they move\n"
      "%5s %6s %9s %16s %16s %16s %16s\n",
      "ranks", "ratio", "longshore", "fsdp2", "deepspeed", "fsdp2", "deepspeed");
  for (const PeerFigures& f : all) {
    std::printf("%5d %6.2f %9.1f", f.ranks, f.ratio, milliseconds(f.longshore));
    for (const StepSeconds* peer : {&f.fsdp2, &f.deepspeed, &f.fsdp2_bytes, &f.deepspeed_bytes}) {
      std::printf(" %8.1f (%4.2fx)", milliseconds(*peer),
                  peer->best_known() / f.longshore.best_known());
    }
    std::printf("\n");
  }
}

// ---- JSON ----

Json to_json(const StepSeconds& step) {
  Json json = {{"simulated_seconds", step.simulated}};
  if (step.measured) json["measured_seconds"] = *step.measured;
  return json;
}

Json to_json(const OverlapFigures& f) {
  Json json = {{"ranks", f.point.ranks},
               {"fetch", f.point.fetch},
               {"update", f.point.update},
               {"gradient", f.point.gradient},
               {"roofline_seconds", f.bound.pure},
               {"filled_seconds", f.bound.filled},
               {"busiest_lanes", f.bound.wall},
               {"step", to_json(f.step)},
               {"share_of_filled", f.step.best_known() / f.bound.filled},
               {"share_of_roofline", f.step.best_known() / f.bound.pure}};
  if (f.point.read_state) json["read_state"] = *f.point.read_state;
  if (f.point.write_state) json["write_state"] = *f.point.write_state;
  if (f.point.read_parameters) json["read_parameters"] = *f.point.read_parameters;
  return json;
}

Json to_json(const UpdateFigures& f) {
  return {{"ranks", f.ranks},
          {"update", f.update},
          {"update_seconds", f.update_seconds},
          {"without", to_json(f.without)},
          {"with", to_json(f.with)},
          {"exposed_seconds", f.exposed()}};
}

Json to_json(const PeerFigures& f) {
  return {{"ranks", f.ranks},
          {"ratio", f.ratio},
          {"longshore", to_json(f.longshore)},
          {"fsdp2", to_json(f.fsdp2)},
          {"deepspeed", to_json(f.deepspeed)},
          {"fsdp2_with_its_bytes", to_json(f.fsdp2_bytes)},
          {"deepspeed_with_its_bytes", to_json(f.deepspeed_bytes)}};
}

template <typename Figures>
Json all_to_json(const std::vector<Figures>& all) {
  Json json = Json::array();
  for (const Figures& figures : all) json.push_back(to_json(figures));
  return json;
}

}  // namespace

TimedStepOptions step_options(const LabOverlapOptions& options, const OverlapPoint& point) {
  TimedStepOptions step;
  step.units = options.units;
  step.several_ranks = point.ranks > 1;
  // With several ranks copy, gather and compute are three stages, which need three slots.
  const int64_t ahead = step.several_ranks ? 2 : 1;
  step.prefetch = options.prefetch > 0 ? options.prefetch : ahead;
  UnitTimes& times = step.times;
  times.forward = options.unit_milliseconds * 1e-3;
  times.backward = kBackwardOfForward * times.forward;
  times.update = point.update * times.forward;
  times.fetch = point.fetch * times.forward;
  times.drain = point.gradient * times.backward;
  if (step.several_ranks) {
    times.gather = times.fetch;
    times.drain /= 2;
    times.reduce = times.drain;
  }
  if (point.read_state) {
    step.state_slots = NvmeStoreOptions().state_slots;
    times.read_state = *point.read_state * times.forward;
    times.write_state = point.write_state.value_or(0.0) * times.forward;
    times.commit = times.write_state;
  }
  if (point.read_parameters) {
    step.parameter_slots = NvmeStoreOptions().parameter_slots;
    times.read_parameters = *point.read_parameters * times.forward;
  }
  return step;
}

std::vector<OverlapFigures> measure_overlap(const LabOverlapOptions& options) {
  check_options(options);
  const ModelSpec model = make_equal_units(options.units);
  std::vector<OverlapFigures> all;
  const auto add = [&](const OverlapPoint& point) {
    const TimedStepOptions step = step_options(options, point);
    const StepSeconds seconds = measure(longshore_step(step, model), options, point.ranks);
    all.push_back({point, bound_of(step), seconds});
  };
  for (int32_t ranks : options.ranks) {
    for (double fetch : options.ratios) {
      for (double update : options.ratios) {
        for (double gradient : options.ratios) add({ranks, fetch, update, gradient});
      }
    }
  }
  return all;
}

std::vector<OverlapFigures> measure_drives(const LabOverlapOptions& options) {
  check_options(options);
  const ModelSpec model = make_equal_units(options.units);
  std::vector<OverlapFigures> all;
  for (int32_t ranks : options.ranks) {
    for (double other : kOtherLanesBesideDrives) {
      for (double read : options.ratios) {
        for (double write : options.ratios) {
          for (const bool parameters : {false, true}) {
            OverlapPoint point{ranks, other, other, other, read, write, {}};
            if (parameters) point.read_parameters = kParametersOfState * read;
            const TimedStepOptions step = step_options(options, point);
            all.push_back(
                {point, bound_of(step), measure(longshore_step(step, model), options, ranks)});
          }
        }
      }
    }
  }
  return all;
}

std::vector<UpdateFigures> measure_updates(const LabOverlapOptions& options) {
  check_options(options);
  const ModelSpec model = make_equal_units(options.units);
  std::vector<UpdateFigures> all;
  for (int32_t ranks : options.ranks) {
    OverlapPoint point{ranks, kOtherLanesBesideUpdates, 0.0, kOtherLanesBesideUpdates};
    const auto seconds = [&] {
      return measure(longshore_step(step_options(options, point), model), options, ranks);
    };
    const StepSeconds without = seconds();
    for (double update : options.ratios) {
      point.update = update;
      const double total = options.units * step_options(options, point).times.update;
      all.push_back({ranks, update, total, seconds(), without});
    }
  }
  return all;
}

std::vector<PeerFigures> measure_peers(const LabOverlapOptions& options) {
  check_options(options);
  const ModelSpec model = make_equal_units(options.units);
  std::vector<PeerFigures> all;
  for (int32_t ranks : options.ranks) {
    for (double ratio : options.ratios) {
      const TimedStepOptions ours = step_options(options, {ranks, ratio, ratio, ratio});
      TimedStepOptions fsdp2 = ours;
      fsdp2.times.fetch *= kFsdp2CopyBytes;
      fsdp2.times.drain *= kFsdp2CopyBytes;
      TimedStepOptions deepspeed = ours;
      deepspeed.times.drain *= kDeepSpeedDrainBytes;
      deepspeed.times.update *= kDeepSpeedUpdateBytes;
      const auto run = [&](const TimedStep& step) { return measure(step, options, ranks); };
      PeerFigures figures;
      figures.ranks = ranks;
      figures.ratio = ratio;
      figures.longshore = run(longshore_step(ours, model));
      figures.fsdp2 = run(fsdp2_step(ours, model));
      figures.fsdp2_bytes = run(fsdp2_step(fsdp2, model));
      figures.deepspeed = run(deepspeed_step(ours, model));
      figures.deepspeed_bytes = run(deepspeed_step(deepspeed, model));
      all.push_back(figures);
    }
  }
  return all;
}

int run_lab_overlap(const LabOverlapOptions& options) {
  const auto overlap = measure_overlap(options);
  const auto drives = measure_drives(options);
  const auto updates = measure_updates(options);
  const auto peers = options.peers ? measure_peers(options) : std::vector<PeerFigures>();
  if (options.json) {
    Json json = {{"units", options.units},
                 {"unit_milliseconds", options.unit_milliseconds},
                 {"overlap", all_to_json(overlap)},
                 {"drives", all_to_json(drives)},
                 {"updates", all_to_json(updates)}};
    if (options.peers) json["peers"] = all_to_json(peers);
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  print_overlap(overlap);
  print_drives(drives);
  print_updates(updates);
  if (options.peers) print_peers(peers);
  return 0;
}

}  // namespace longshore
