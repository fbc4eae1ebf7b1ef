// Every schedule of the builder is valid, over models and settings. With a wait removed, or an
// operation misplaced or doubled, it is not.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>

#include "offload/schedule/schedule_simulation.h"
#include "offload/schedule/schedule_validator.h"
#include "offload/schedule/step_schedule.h"
#include "tests/offload/schedule_cases.h"

namespace longshore {
namespace {

// Mutations are quadratic, so only every N-th case runs them.
constexpr size_t kMutationStride = 53;

std::string findings_of(const StepSchedule& schedule, const ScheduleInputs& inputs) {
  std::string text;
  for (const ScheduleFinding& finding : validate_schedule(schedule, inputs)) {
    text += finding.text + "\n";
  }
  return text;
}

// The validator accepts the schedule of every model and setting.
TEST(ScheduleBuilderValidity, HoldsForEveryModelAndSetting) {
  for (const ScheduleCase& options : all_schedule_cases()) {
    const ModelSpec model = make_case_model(options);
    const ScheduleInputs inputs = make_case_inputs(options, model);
    ASSERT_EQ(findings_of(build_schedule(inputs), inputs), "") << options.name();
  }
}

// Goal: no wait is implied by the operation's track or by another wait, so a list is the shortest
// of its order.
TEST(ScheduleBuilderValidity, NoWaitIsImplied) {
  for (const ScheduleCase& options : all_schedule_cases()) {
    const ModelSpec model = make_case_model(options);
    const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
    const HappensBefore before(schedule);
    const std::vector<size_t> tracks = tracks_of(schedule);
    std::array<int32_t, kTrackCount> last;  // by track: its last operation so far
    last.fill(-1);
    for (size_t op = 0; op < schedule.ops.size(); ++op) {
      const std::vector<int32_t>& after = schedule.ops[op].after;
      const int32_t previous = std::exchange(last[tracks[op]], static_cast<int32_t>(op));
      for (const int32_t wait : after) {
        const bool by_track = previous >= 0 && (wait == previous || before.ordered(wait, previous));
        const bool by_wait =
            std::ranges::any_of(after, [&](int32_t other) { return before.ordered(wait, other); });
        ASSERT_FALSE(by_track || by_wait)
            << options.name() << ": " << describe_op(schedule, static_cast<int32_t>(op))
            << " need not wait for " << describe_op(schedule, wait);
      }
    }
  }
}

// Goal: every removed wait is detected, and no wait is implied by others.
TEST(ScheduleBuilderValidity, EveryMissingWaitIsCaught) {
  const std::vector<ScheduleCase> cases = all_schedule_cases();
  int caught = 0;
  for (size_t i = 0; i < cases.size(); i += kMutationStride) {
    const ModelSpec model = make_case_model(cases[i]);
    const ScheduleInputs inputs = make_case_inputs(cases[i], model);
    const StepSchedule schedule = build_schedule(inputs);
    const HappensBefore before(schedule);
    for (size_t op = 0; op < schedule.ops.size(); ++op) {
      for (size_t wait = 0; wait < schedule.ops[op].after.size(); ++wait) {
        StepSchedule broken = schedule;
        std::vector<int32_t>& after = broken.ops[op].after;
        after.erase(after.begin() + static_cast<int64_t>(wait));
        EXPECT_NE(HappensBefore(broken), before)
            << cases[i].name() << ": " << describe_op(schedule, static_cast<int32_t>(op))
            << " need not wait for " << describe_op(schedule, schedule.ops[op].after[wait]);
        ++caught;
        EXPECT_NE(findings_of(broken, inputs), "")
            << cases[i].name() << ": " << describe_op(schedule, static_cast<int32_t>(op))
            << " without waiting for " << describe_op(schedule, schedule.ops[op].after[wait]);
      }
    }
  }
  EXPECT_GT(caught, 2000);
}

// Returns the number of pairs of successive collectives that may run side by side.
int unordered_collectives(const StepSchedule& schedule) {
  const HappensBefore before(schedule);
  int32_t last = -1;
  int pairs = 0;
  for (int32_t i = 0; i < std::ssize(schedule.ops); ++i) {
    if (!is_collective(schedule.ops[static_cast<size_t>(i)].kind)) continue;
    if (last >= 0 && !before.ordered(last, i)) ++pairs;
    last = i;
  }
  return pairs;
}

// Goal: ordered collectives can never run side by side, whatever the times; without that order a
// schedule is refused where it is required. Only collectives get waits from it; it can imply those
// of other operations.
TEST(ScheduleBuilderValidity, CollectivesHaveOneOrderWhereTheyMust) {
  int refused = 0;
  for (ScheduleCase options : all_schedule_cases()) {
    options.ordered = false;
    const ModelSpec model = make_case_model(options);
    ScheduleInputs inputs = make_case_inputs(options, model);
    StepSchedule free = build_schedule(inputs);
    inputs.ordered_collectives = true;
    const StepSchedule ordered = build_schedule(inputs);
    ASSERT_EQ(unordered_collectives(ordered), 0) << options.name();
    const int pairs = unordered_collectives(free);
    const std::string findings = findings_of(free, inputs);
    ASSERT_EQ(findings.empty(), pairs == 0) << options.name() << findings;
    if (pairs > 0) ++refused;
    ASSERT_EQ(free.ops.size(), ordered.ops.size());
    const HappensBefore before(ordered);
    for (size_t i = 0; i < free.ops.size(); ++i) {
      const std::vector<int32_t>& waits = free.ops[i].after;
      const bool all_hold = std::ranges::all_of(
          waits, [&](int32_t wait) { return before.ordered(wait, static_cast<int32_t>(i)); });
      ASSERT_TRUE(all_hold) << options.name();
      if (is_collective(free.ops[i].kind)) continue;
      ASSERT_TRUE(std::ranges::includes(waits, ordered.ops[i].after)) << options.name();
    }
  }
  EXPECT_GT(refused, 1000);
}

// Goal: the simulation, and so every forecast, runs ordered collectives one at a time.
TEST(ScheduleBuilderValidity, OrderedCollectivesAreSimulatedOneAtATime) {
  const ScheduleCase options{.blocks = 6, .frozen = {}, .prefetch = 2, .ordered = true};
  const ModelSpec model = make_case_model(options);
  const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<double> seconds;
    for (size_t i = 0; i < schedule.ops.size(); ++i) {
      seconds.push_back(static_cast<double>(1 + random() % 9));
    }
    const SimulatedPass pass = simulate_schedule(schedule, seconds);
    double until = 0.0;
    for (size_t i = 0; i < schedule.ops.size(); ++i) {
      if (!is_collective(schedule.ops[i].kind)) continue;
      EXPECT_GE(pass.ops[i].begin, until) << "op " << i;
      until = pass.ops[i].end;
    }
  }
}

// Applies `change` to a copy for each operation it applies to; the validator must find each change.
template <typename Change>
void expect_found(const char* what, const Change& change) {
  const std::vector<ScheduleCase> cases = all_schedule_cases();
  int tried = 0;
  for (size_t i = 0; i < cases.size(); i += kMutationStride) {
    const ModelSpec model = make_case_model(cases[i]);
    const ScheduleInputs inputs = make_case_inputs(cases[i], model);
    const StepSchedule schedule = build_schedule(inputs);
    for (size_t op = 0; op < schedule.ops.size(); ++op) {
      StepSchedule broken = schedule;
      if (!change(broken, op)) continue;
      ++tried;
      EXPECT_NE(findings_of(broken, inputs), "")
          << what << ", " << cases[i].name() << ": " << describe_op(schedule, static_cast<int>(op));
    }
  }
  EXPECT_GT(tried, 100) << what;
}

// Misplaced and doubled operations are detected.
TEST(ScheduleBuilderValidity, OperationsMisplacedOrDoubledAreCaught) {
  const auto expect_other_found = [](const char* what, Memory memory) {
    expect_found(what, [memory](StepSchedule& schedule, size_t op) {
      std::vector<Access>& accesses = schedule.ops[op].accesses;
      const auto access = std::ranges::find(
          accesses, memory, [](const Access& each) { return each.resource.memory; });
      const bool found = access != accesses.end() && schedule.ops[op].kind != OpKind::kCommit;
      if (found) access->resource.number = access->resource.number == 0 ? 1 : 0;
      return found;
    });
  };
  expect_other_found("another slot", Memory::kDeviceSlot);
  expect_other_found("another gradient buffer", Memory::kGradientBuffer);
  expect_other_found("another host gradient slot", Memory::kHostGradientSlot);
  expect_other_found("another input slot", Memory::kInputSlot);
  expect_other_found("another staging slot", Memory::kStagingSlot);
  expect_other_found("another state slot", Memory::kStateSlot);
  expect_other_found("another parameter slot", Memory::kParameterSlot);
  expect_found("the unit after it", [](StepSchedule& schedule, size_t op) {
    ++schedule.ops[op].unit.value;
    return true;
  });
  expect_found("twice", [](StepSchedule& schedule, size_t op) {
    schedule.ops.push_back(schedule.ops[op]);
    return true;
  });
  expect_found("compute before the compute before it", [](StepSchedule& schedule, size_t op) {
    if (lane_of(schedule.ops[op].kind) != Lane::kCompute || op == 0) return false;
    size_t other = op - 1;
    while (lane_of(schedule.ops[other].kind) != Lane::kCompute) {
      if (other-- == 0) return false;
    }
    std::swap(schedule.ops[op], schedule.ops[other]);
    return true;
  });
}

// Goal: what operations declare is what they access: an access that is left out, doubled, of the
// other direction or of another unit's data is detected. The link has no data; the validator looks
// at the order of collectives itself.
TEST(ScheduleBuilderValidity, WrongDeclarationsAreCaught) {
  using Change = void (*)(std::vector<Access>&, size_t);
  constexpr Change kChanges[] = {
      [](std::vector<Access>& all, size_t i) { all.erase(all.begin() + static_cast<int64_t>(i)); },
      [](std::vector<Access>& all, size_t i) { all.push_back(Access(all[i])); },
      [](std::vector<Access>& all, size_t i) { all[i].writes = !all[i].writes; },
      [](std::vector<Access>& all, size_t i) { ++all[i].unit.value; }};
  const std::vector<ScheduleCase> cases = all_schedule_cases();
  int tried = 0;
  for (size_t i = 0; i < cases.size(); i += kMutationStride) {
    const ModelSpec model = make_case_model(cases[i]);
    const ScheduleInputs inputs = make_case_inputs(cases[i], model);
    StepSchedule schedule = build_schedule(inputs);
    for (size_t op = 0; op < schedule.ops.size(); ++op) {
      const std::vector<Access> accesses = schedule.ops[op].accesses;
      for (size_t access = 0; access < accesses.size(); ++access) {
        if (accesses[access].resource.memory == Memory::kLink) continue;
        for (const Change change : kChanges) {
          change(schedule.ops[op].accesses, access);
          ++tried;
          EXPECT_NE(findings_of(schedule, inputs), "")
              << cases[i].name() << ": " << describe_op(schedule, static_cast<int>(op))
              << ", access " << access << ", change "
              << std::find(kChanges, std::end(kChanges), change) - kChanges;
          schedule.ops[op].accesses = accesses;
        }
      }
    }
  }
  EXPECT_GT(tried, 10000);
}

// ---- Execution of what the validator accepts ----

// Runs a schedule with random times and checks every slot: a reader finds the unit that was fetched
// and gathered there, and no operation writes meanwhile. It ignores waits.
void expect_slots_hold(const StepSchedule& schedule, const ScheduleInputs& inputs,
                       std::mt19937& random, const std::string& name) {
  std::vector<double> seconds;
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    seconds.push_back(random() % 4 == 0 ? 1.0 : static_cast<double>(1 + random() % 1000));
  }
  const SimulatedPass pass = simulate_schedule(schedule, seconds);
  const OpKind fills = inputs.gathers ? OpKind::kGather : OpKind::kFetch;
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    if (lane_of(schedule.ops[i].kind) != Lane::kCompute) continue;
    for (const Placed& placed : schedule.ops[i].placed()) {
      double newest = -1.0;
      std::optional<UnitId> held;
      for (size_t j = 0; j < schedule.ops.size(); ++j) {
        const Op& other = schedule.ops[j];
        if (other.kind != OpKind::kFetch && other.kind != OpKind::kGather) continue;
        if (other.slot<DeviceSlot>() != placed.slot) continue;
        const bool apart =
            pass.ops[j].end <= pass.ops[i].begin || pass.ops[j].begin >= pass.ops[i].end;
        EXPECT_TRUE(apart) << name << ": ops " << i << " and " << j;
        if (other.kind != fills || pass.ops[j].end > pass.ops[i].begin) continue;
        if (pass.ops[j].begin < newest) continue;
        newest = pass.ops[j].begin;
        held = other.unit;
      }
      EXPECT_EQ(held, placed.unit) << name << ": op " << i << " slot " << placed.slot;
    }
  }
}

// Slots hold the units that operations read, whatever the times.
TEST(ScheduleBuilderValidity, SlotsHoldWhatIsReadWhateverTheTimes) {
  const std::vector<ScheduleCase> cases = all_schedule_cases();
  std::mt19937 random(5);
  for (size_t i = 0; i < cases.size(); i += 7) {
    const ModelSpec model = make_case_model(cases[i]);
    const ScheduleInputs inputs = make_case_inputs(cases[i], model);
    const StepSchedule schedule = build_schedule(inputs);
    for (int round = 0; round < 3; ++round) {
      expect_slots_hold(schedule, inputs, random, cases[i].name());
    }
  }
}

// Goal: gradients use the slots of a ring in rotation; only then an offload waits for an update.
TEST(ScheduleBuilderValidity, GradientsTakeTurnsAtHome) {
  ScheduleCase options{.blocks = 4, .frozen = {2}, .overlap = UpdateOverlap::kBackward};
  const ModelSpec model = make_case_model(options);
  for (const int32_t ring : {0, 2, 3}) {
    options.gradient_ring = ring;
    const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
    std::vector<int32_t> updates;
    int32_t drains = 0;
    for (size_t i = 0; i < schedule.ops.size(); ++i) {
      const Op& op = schedule.ops[i];
      std::optional<HostGradientSlot> turn;
      if (ring > 0) turn = HostGradientSlot(drains % ring);
      if (op.kind == OpKind::kUpdate) {
        const Op& drain = schedule.ops[static_cast<size_t>(op.after.back())];
        EXPECT_EQ(op.find<HostGradientSlot>(), drain.find<HostGradientSlot>());
        updates.push_back(static_cast<int32_t>(i));
      } else if (op.kind == OpKind::kDrain) {
        EXPECT_EQ(op.find<HostGradientSlot>(), turn);
        const bool waits = std::ranges::any_of(op.after, [&](int32_t before) {
          return schedule.ops[static_cast<size_t>(before)].kind == OpKind::kUpdate;
        });
        EXPECT_EQ(waits, ring > 0 && drains >= ring);
        if (waits) {
          EXPECT_EQ(op.after.front(), updates.at(static_cast<size_t>(drains - ring)));
        }
        ++drains;
      } else {
        EXPECT_FALSE(op.find<HostGradientSlot>().has_value()) << name_of(op.kind);
      }
    }
    EXPECT_EQ(drains, 5) << "one of six units is frozen";
  }
}

// Goal: inputs are written in the order of the units and read in reverse, each as soon as a staging
// slot is free; the last ones stay in their slots.
TEST(ScheduleBuilderValidity, InputsTakeTurnsOnTheirWayToDrives) {
  for (const int32_t staging : {1, 2, 3, 8}) {
    const ScheduleCase options{
        .blocks = 7, .frozen = {}, .input_slots = 2, .input_staging = staging};
    const ModelSpec model = make_case_model(options);
    const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
    std::vector<int32_t> saved, written, read, loaded;
    for (const Op& op : schedule.ops) {
      if (op.kind == OpKind::kSaveInput) saved.push_back(op.unit.value);
      if (op.kind == OpKind::kWriteInput) written.push_back(op.unit.value);
      if (op.kind == OpKind::kReadInput) read.push_back(op.unit.value);
      if (op.kind == OpKind::kLoadInput) loaded.push_back(op.unit.value);
      if (op.kind == OpKind::kSaveInput) {
        EXPECT_EQ(op.find<StagingSlot>(), StagingSlot((op.unit.value - 1) % staging));
      }
      if (op.kind != OpKind::kReadInput) continue;
      const Op& emptied = schedule.ops[static_cast<size_t>(op.after.back())];
      EXPECT_EQ(emptied.kind, OpKind::kLoadInput);
      EXPECT_EQ(emptied.unit.value, op.unit.value + staging);
      EXPECT_EQ(emptied.find<StagingSlot>(), op.find<StagingSlot>());
    }
    EXPECT_EQ(saved, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
    std::vector<int32_t> expected = saved;
    expected.resize(static_cast<size_t>(std::max(0, 6 - staging)));
    EXPECT_EQ(written, expected);
    std::ranges::reverse(expected);
    EXPECT_EQ(read, expected);
    std::ranges::reverse(saved);
    EXPECT_EQ(loaded, saved);
  }
}

// Goal: inputs that are offloaded to the host or to drives cost no time while compute takes longer.
TEST(ScheduleBuilderValidity, KeptInputsHideBehindCompute) {
  const auto seconds = [](const ScheduleCase& options) {
    const ModelSpec model = make_case_model(options);
    const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
    std::vector<double> times;
    for (const Op& op : schedule.ops) {
      times.push_back(op.kind == OpKind::kBackward ? 3.0 : op.kind == OpKind::kForward ? 1.0 : 0.4);
    }
    return simulate_schedule(schedule, times).seconds;
  };
  for (int64_t prefetch : {1, 2}) {
    for (int32_t slots : {2, 3}) {
      ScheduleCase options{.blocks = 12, .frozen = {}, .prefetch = prefetch};
      options.several_ranks = false;
      const double without = seconds(options);
      options.input_slots = slots;
      for (const int32_t staging : {0, 2, 3}) {
        options.input_staging = staging;
        EXPECT_DOUBLE_EQ(seconds(options), without)
            << prefetch << " ahead, " << slots << " slots, " << staging << " staging slots";
      }
    }
  }
}

// ---- State and parameters on drives

std::vector<std::string> drive_operations(const StepSchedule& schedule) {
  std::vector<std::string> texts;
  for (const Op& op : schedule.ops) {
    const std::optional<StateSlot> state = op.find<StateSlot>();
    const std::optional<ParameterSlot> parameters = op.find<ParameterSlot>();
    if (!state && !parameters) continue;
    std::string text = std::string(name_of(op.kind)) + " " + std::to_string(op.unit.value);
    if (state) text += " s" + std::to_string(state->value);
    if (parameters) text += " p" + std::to_string(parameters->value);
    texts.push_back(text);
  }
  return texts;
}

// Goal: a unit's state is read before its update and written after it, with slots in rotation; the
// next fetch takes the updated parameters, later ones the written ones.
TEST(ScheduleBuilderValidity, StateTakesTurnsInItsSlots) {
  ScheduleCase options{.blocks = 1, .frozen = {}, .prefetch = 0};
  options.state_slots = 2;
  options.parameter_slots = 2;
  const ModelSpec model = make_case_model(options);
  EXPECT_EQ(drive_operations(build_schedule(make_case_inputs(options, model))),
            (std::vector<std::string>{
                "read state 0 s0", "update 0 s0 p0", "write state 0 s0", "fetch 0 p0",
                "read state 1 s1", "update 1 s1 p1", "write state 1 s1", "fetch 1 p1",
                "read state 2 s0", "update 2 s0 p0", "write state 2 s0", "fetch 2 p0",
                "read parameters 1 p1", "fetch 1 p1", "read parameters 0 p0", "fetch 0 p0"}));
  options.overlap = UpdateOverlap::kNone;  // updates come after the pass
  EXPECT_EQ(drive_operations(build_schedule(make_case_inputs(options, model))),
            (std::vector<std::string>{"read parameters 0 p0", "fetch 0 p0", "read parameters 1 p1",
                                      "fetch 1 p1", "read parameters 2 p0", "fetch 2 p0",
                                      "read parameters 1 p1", "fetch 1 p1", "read parameters 0 p0",
                                      "fetch 0 p0"}));
  options.pass = Pass::kUpdates;
  options.parameter_slots = 0;
  EXPECT_EQ(drive_operations(build_schedule(make_case_inputs(options, model))),
            (std::vector<std::string>{"read state 0 s0", "update 0 s0", "write state 0 s0",
                                      "read state 1 s1", "update 1 s1", "write state 1 s1",
                                      "read state 2 s0", "update 2 s0", "write state 2 s0"}));
}

// Goal: frozen parameters in files are read for every fetch, without a wait for the update, which
// the fetch itself waits for. A unit without frozen parameters reads nothing.
TEST(ScheduleBuilderValidity, FrozenParametersAreReadBesideTheUpdate) {
  ScheduleCase options{.blocks = 1, .frozen = {0, 1}, .prefetch = 0, .several_ranks = false};
  options.parameter_slots = 2;
  options.adapters = true;
  const ModelSpec model = make_case_model(options);
  const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
  EXPECT_EQ(drive_operations(schedule),
            (std::vector<std::string>{"read parameters 0 p0", "fetch 0 p0", "read parameters 1 p1",
                                      "fetch 1 p1", "read parameters 1 p0", "fetch 1 p0",
                                      "read parameters 0 p1", "fetch 0 p1"}));
  const auto first = [&schedule](OpKind kind, int unit) {
    const auto found = std::ranges::find_if(
        schedule.ops, [&](const Op& op) { return op.kind == kind && op.unit == UnitId(unit); });
    return static_cast<int32_t>(found - schedule.ops.begin());
  };
  for (const int unit : {0, 1}) {
    const Op& read = schedule.ops.at(static_cast<size_t>(first(OpKind::kReadParameters, unit)));
    const Op& fetch = schedule.ops.at(static_cast<size_t>(first(OpKind::kFetch, unit)));
    EXPECT_EQ(read.after, std::vector<int32_t>());
    for (const OpKind waited : {OpKind::kReadParameters, OpKind::kUpdate}) {
      EXPECT_EQ(std::ranges::count(fetch.after, first(waited, unit)), 1) << name_of(waited);
    }
  }
  EXPECT_FALSE(
      schedule.ops.at(static_cast<size_t>(first(OpKind::kFetch, 2))).find<ParameterSlot>());
}

// Goal: a state sweep includes units without trained parameters, reads ahead and writes behind.
TEST(ScheduleBuilderValidity, AWalkComesToEveryUnit) {
  ScheduleCase options{.blocks = 2, .frozen = {1}};
  options.pass = Pass::kSweep;
  options.state_slots = 3;
  const ModelSpec model = make_case_model(options);
  const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
  std::vector<UnitId> executed;
  for (const Op& op : schedule.ops) {
    if (op.kind == OpKind::kUpdate) executed.push_back(op.unit);
  }
  std::vector<UnitId> all;
  for (const UnitSpec& unit : model.units) all.push_back(unit.id);
  EXPECT_EQ(executed, all);
  const auto units = static_cast<double>(all.size());
  const std::vector<double> times(schedule.ops.size(), 1.0);
  EXPECT_EQ(simulate_schedule(schedule, times).seconds, units + 2);
  // With one slot, units are processed one after the other.
  options.state_slots = 1;
  EXPECT_EQ(simulate_schedule(build_schedule(make_case_inputs(options, model)), times).seconds,
            3 * units);
}

// Goal: if compute takes longer than the drives, state and parameters on drives cost a step only
// the time before the first unit can compute.
TEST(ScheduleBuilderValidity, DrivesHideBehindCompute) {
  for (const UpdateOverlap overlap : {UpdateOverlap::kForward, UpdateOverlap::kBackward}) {
    for (const int32_t parameter_slots : {0, 2}) {
      ScheduleCase options{.blocks = 12, .frozen = {}};
      options.several_ranks = false;
      options.overlap = overlap;
      const auto seconds = [&options] {
        const ModelSpec model = make_case_model(options);
        const StepSchedule schedule = build_schedule(make_case_inputs(options, model));
        std::vector<double> times;
        for (const Op& op : schedule.ops) {
          const bool computes = lane_of(op.kind) == Lane::kCompute;
          times.push_back(computes ? 4.0 : 1.0);
        }
        return simulate_schedule(schedule, times).seconds;
      };
      const double without = seconds();
      options.state_slots = 3;
      options.parameter_slots = parameter_slots;
      const double with = seconds();
      // The first unit's state comes before all; in backward the last update's write comes after
      // all.
      const double most = overlap == UpdateOverlap::kForward || parameter_slots > 0 ? 2.0 : 1.0;
      EXPECT_LE(with, without + most) << static_cast<int>(overlap) << " " << parameter_slots;
    }
  }
}

}  // namespace
}  // namespace longshore
