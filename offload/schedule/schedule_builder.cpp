// build_schedule: goes through the pass plan once and writes every operation with its accesses.
// Waits follow from these (derived_waits.h). This file decides the operations, their order of
// issue, the rotation of slots, what is read ahead, and what stays in its slot.
//
// The order of issue of one execution is: fetches of units, its compute, then the operations that
// move its results. Fetches for later executions are issued before the execution computes, so they
// overlap with it.
#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "offload/schedule/derived_waits.h"
#include "offload/schedule/step_schedule.h"
#include "shard/input_tier.h"

namespace longshore {
namespace {

class Builder {
  using enum OpKind;
  using enum Memory;

 public:
  explicit Builder(const ScheduleInputs& inputs)
      : in_(inputs),
        runs_(*inputs.model, inputs.keep_results),
        updated_(inputs.model->units.size(), false),
        owns_tied_(inputs.model->units.size(), false) {
    for (const UnitSpec& unit : in_.model->units) {
      for (ParamRef ref : unit.tied) owns_tied_[index(ref.unit)] = true;
    }
    inputs_.resize(static_cast<size_t>(in_.input_slots));
    staging_.resize(static_cast<size_t>(in_.input_staging));
    brought_.resize(static_cast<size_t>(in_.parameter_slots));
    if (in_.input_staging > 0 && in_.pass == Pass::kTrain) choose_written();
    if (in_.commits && in_.pass != Pass::kSweep) {
      to_commit_ = std::ranges::count_if(in_.model->units, &UnitSpec::has_trainable);
    }
  }

  StepSchedule build_updates() {
    if (in_.pass == Pass::kCommit) {
      add_commit();
      return std::move(out_);
    }
    for (const UnitSpec& unit : in_.model->units) {
      if (in_.pass == Pass::kUpdates && !unit.has_trainable()) continue;
      add_update(unit.id, std::nullopt, /*passes=*/false);
    }
    return std::move(out_);
  }

  StepSchedule build() {
    const std::vector<UnitExecution>& executions = in_.executions.executions;
    for (size_t i = 0; i < executions.size(); ++i) {
      visit_ = i;
      for (const Placed& placed : executions[i].fetches) add_fetch(placed);
      if (trains() && i >= first_backward()) {
        add_backward(executions[i]);
      } else {
        add_forward(executions[i]);
      }
    }
    return std::move(out_);
  }

 private:
  // By slot: the unit whose data it holds.
  template <typename Slot>
  using Holders = SlotVector<Slot, std::optional<UnitId>>;

  // Returns the slot whose turn it is among `count` slots in rotation.
  template <typename Slot>
  static Slot take_turn(Slot& next, int32_t count) {
    return std::exchange(next, Slot((next.value + 1) % count));
  }
  // Returns the slot that holds the unit's data, if there is one.
  template <typename Slot>
  static std::optional<Slot> slot_of(const Holders<Slot>& holders, UnitId unit) {
    const auto found = std::ranges::find(holders, std::optional(unit));
    if (found == holders.end()) return std::nullopt;
    return Slot(static_cast<int32_t>(found - holders.begin()));
  }

  static size_t index(UnitId unit) { return static_cast<size_t>(unit.value); }
  bool trains() const { return in_.pass == Pass::kTrain; }
  // The loss is the first execution of backward.
  size_t first_backward() const { return in_.model->units.size() - 1; }

  void add(OpKind kind, UnitId unit, std::vector<Access> accesses) {
    Op op{.kind = kind, .unit = unit, .accesses = std::move(accesses)};
    if (in_.ordered_collectives && is_collective(kind)) {
      op.accesses.push_back(writes(kLink, UnitId()));
    }
    const std::vector<Bytes>& bytes = in_.bytes[static_cast<size_t>(kind)];
    if (!bytes.empty()) op.bytes = bytes.at(index(unit));
    op.after = waits_.add(op);
    out_.ops.push_back(std::move(op));
  }

  // ---- Updates

  bool parameters_on_drives() const { return in_.parameter_slots > 0 && in_.state_slots > 0; }

  // Adds read, update and write of a unit's state. The gradient is in `gradient`, or in the unit's
  // own place. With `passes` the update leaves the parameters in a slot, from which the next fetch
  // takes them.
  void add_update(UnitId unit, std::optional<HostGradientSlot> gradient, bool passes) {
    std::vector<Access> update;
    if (gradient) update.push_back(reads(*gradient, unit));
    std::optional<StateSlot> state;
    if (in_.state_slots > 0) {
      state = take_turn(next_state_, in_.state_slots);
      update.push_back(writes(*state, unit));
      add(kReadState, unit, {writes(*state, unit), reads(kDriveState, unit)});
    }
    if (passes && parameters_on_drives()) {
      const ParameterSlot parameters = take_turn(next_parameters_, in_.parameter_slots);
      update.push_back(writes(parameters, unit));
      brought_[parameters] = unit;
    }
    if (!gradient && in_.pass != Pass::kSweep) update.push_back(reads(kHostGradient, unit));
    if (!parameters_on_drives()) update.push_back(writes(kHostParameters, unit));
    add(kUpdate, unit, std::move(update));
    updated_[index(unit)] = true;
    if (!state) return;
    std::vector<Access> write = {reads(*state, unit), writes(kDriveState, unit)};
    if (!parameters_on_drives()) write.push_back(reads(kHostParameters, unit));
    add(kWriteState, unit, std::move(write));
    // The commit follows the last unit's write. It runs concurrently with all later operations,
    // because nothing that is written changes before the next pass.
    if (to_commit_ > 0 && --to_commit_ == 0) add_commit();
  }

  // Adds the commit. A unit without an update is copied through a slot.
  void add_commit() {
    std::vector<Access> commit;
    for (int32_t i = 0; i < in_.state_slots; ++i) commit.push_back(writes(StateSlot(i), UnitId()));
    for (const UnitSpec& unit : in_.model->units) {
      commit.push_back(reads(kDriveState, unit.id));
      if (!parameters_on_drives()) commit.push_back(reads(kHostParameters, unit.id));
    }
    add(kCommit, UnitId(), std::move(commit));
  }

  // ---- Parameters

  // Returns the slot that has the unit's parameters for the next fetch: the one that the update
  // left them in, or one that a new read fills. No update changes frozen parameters in files, so
  // their read waits for the slot alone.
  ParameterSlot bring_parameters(UnitId unit) {
    std::optional<ParameterSlot> slot = slot_of(brought_, unit);
    if (!slot) {
      slot = take_turn(next_parameters_, in_.parameter_slots);
      std::vector<Access> read = {writes(*slot, unit)};
      if (parameters_on_drives()) read.push_back(reads(kDriveState, unit));
      add(kReadParameters, unit, std::move(read));
    }
    brought_[*slot].reset();
    return *slot;
  }

  void add_fetch(const Placed& placed) {
    const UnitSpec& unit = in_.model->unit(placed.unit);
    const bool updates = trains() && in_.overlap == UpdateOverlap::kForward && unit.has_trainable();
    if (updates && !updated_[index(unit.id)]) add_update(unit.id, std::nullopt, /*passes=*/true);
    std::vector<Access> fetch = {writes(placed.slot, unit.id)};
    if (parameters_on_drives() || in_.reads_files(unit)) {
      // With files the fetch adds the trained parameters to the slot.
      fetch.push_back({bring_parameters(unit.id), unit.id, in_.frozen_in_files()});
    }
    if (!parameters_on_drives()) fetch.push_back(reads(kHostParameters, unit.id));
    add(kFetch, unit.id, std::move(fetch));
    if (in_.gathers) add(kGather, unit.id, {writes(placed.slot, unit.id)});
  }

  // ---- Compute

  static std::vector<Access> reads_of(const std::vector<Placed>& leases) {
    std::vector<Access> all;
    for (const Placed& placed : leases) all.push_back(reads(placed.slot, placed.unit));
    return all;
  }

  void add_forward(const UnitExecution& execution) {
    std::vector<Access> forward = reads_of(execution.leases);
    const UnitId next(execution.unit.value + 1);
    const SharedInputGroup* const from = run_of(execution.unit);
    const SharedInputGroup* const to =
        next.value < std::ssize(in_.model->units) ? run_of(next) : nullptr;
    const bool adds_results = trains() && from != nullptr && from->keeps_results();
    if (from != nullptr) forward.push_back({slot_of(*from), execution.unit, adds_results});
    if (to != nullptr) {
      forward.push_back(writes(slot_of(*to), next));
      inputs_[slot_of(*to)] = to->first;
    }
    add(kForward, execution.unit, std::move(forward));
    if (adds_results && execution.unit == from->last) add_save(*from);
    // The save follows the last unit that writes a part of the run's input.
    if (trains() && to != nullptr && next == to->last && !to->keeps_results()) add_save(*to);
  }

  void add_backward(const UnitExecution& execution) {
    const UnitSpec& unit = in_.model->unit(execution.unit);
    std::vector<Access> backward = reads_of(execution.leases);
    std::optional<Resource> sum;  // of the gradient
    if (unit.has_trainable() && owns_tied_[index(unit.id)]) {
      sum = Resource(kWaitingGradient, unit.id);
    } else if (unit.has_trainable()) {
      sum = take_turn(next_gradient_, in_.gradient_buffers);
    }
    if (sum) backward.push_back(writes(*sum, unit.id));
    if (const SharedInputGroup* const run = run_of(unit.id)) {
      add_load(*run);
      add_loads_ahead(*run);
      backward.push_back(reads(slot_of(*run), unit.id));
    }
    for (const UnitId owner : units_leased_for(unit)) {
      const bool adds = std::ranges::any_of(unit.tied, [&](ParamRef ref) {
        return ref.unit == owner && !in_.model->parameter(ref).frozen;
      });
      if (adds) backward.push_back(writes(kWaitingGradient, owner));
    }
    add(kBackward, unit.id, std::move(backward));
    if (sum) add_gradient(unit.id, *sum);
  }

  void add_gradient(UnitId unit, const Resource& sum) {
    if (in_.reduces) add(kReduce, unit, {writes(sum, unit)});
    std::optional<HostGradientSlot> host;
    if (in_.gradient_ring > 0) host = take_turn(next_host_slot_, in_.gradient_ring);
    add(kDrain, unit, {reads(sum, unit), host ? writes(*host, unit) : writes(kHostGradient, unit)});
    // The unit's own backward is the last to read it, and no later operation fetches it.
    if (in_.overlap == UpdateOverlap::kBackward) add_update(unit, host, /*passes=*/false);
  }

  // ---- Activation checkpoints

  // Returns the run of the unit's offloaded input; null where it has none.
  const SharedInputGroup* run_of(UnitId unit) const {
    return in_.input_slots > 0 ? runs_.of(unit) : nullptr;
  }
  InputSlot slot_of(const SharedInputGroup& run) const { return run.slot(in_.input_slots); }

  // Returns whether backward needs the run, and it is not in its slot then as the last runs are.
  bool is_saved(const SharedInputGroup& run) const {
    const std::vector<UnitExecution>& executions = in_.executions.executions;
    const auto backward = executions.begin() + static_cast<int64_t>(first_backward());
    return std::ssize(runs_.all()) - run.number >= in_.input_slots &&
           std::any_of(backward, executions.end(),
                       [&](const UnitExecution& execution) { return execution.unit == run.last; });
  }

  void add_save(const SharedInputGroup& run) {
    if (!is_saved(run)) return;
    const UnitId unit = run.first;
    const Access input = reads(slot_of(run), unit);
    if (in_.input_staging == 0)
      return add(kSaveInput, unit, {input, writes(kHostCheckpoint, unit)});
    const StagingSlot staging = take_turn(next_staging_, in_.input_staging);
    staging_[staging] = unit;
    add(kSaveInput, unit, {input, writes(staging, unit)});
    if (std::ranges::find(to_drives_, unit) == to_drives_.end()) return;
    add(kWriteInput, unit, {reads(staging, unit), writes(kDriveCheckpoint, unit)});
  }

  // With drives, checkpoints are written in the order of the units and read in reverse. The last
  // ones are never written: backward finds them in their staging slots.
  void choose_written() {
    for (const SharedInputGroup& run : runs_.all()) {
      if (is_saved(run)) to_drives_.push_back(run.first);
    }
    to_drives_.resize(to_drives_.size() - std::min(to_drives_.size(), staging_.size()));
    to_read_ = to_drives_;
  }

  // Reads the checkpoint that backward needs next into the staging slot that was just emptied.
  void add_read_ahead(StagingSlot staging) {
    if (to_read_.empty()) return;
    const UnitId unit = to_read_.back();
    to_read_.pop_back();
    staging_[staging] = unit;
    add(kReadInput, unit, {writes(staging, unit), reads(kDriveCheckpoint, unit)});
  }

  void add_load(const SharedInputGroup& run) {
    const UnitId unit = run.first;
    if (std::exchange(inputs_[slot_of(run)], unit) == unit) return;
    const Access input = writes(slot_of(run), unit);
    if (in_.input_staging == 0) return add(kLoadInput, unit, {input, reads(kHostCheckpoint, unit)});
    const std::optional<StagingSlot> staging = slot_of(staging_, unit);
    LONGSHORE_CHECK(staging.has_value()) << "the input of unit " << unit << " is in no slot";
    add(kLoadInput, unit, {input, reads(*staging, unit)});
    add_read_ahead(*staging);
  }

  // Issues loads for later executions while slots are free of inputs that are still to be read.
  void add_loads_ahead(const SharedInputGroup& now) {
    const std::vector<UnitExecution>& executions = in_.executions.executions;
    for (size_t i = visit_ + 1; i < executions.size(); ++i) {
      const SharedInputGroup* const run = run_of(executions[i].unit);
      if (run == nullptr) continue;
      if (now.number - run->number >= std::ssize(inputs_)) return;
      add_load(*run);
    }
  }

  const ScheduleInputs& in_;
  SharedInputGroups runs_;
  size_t visit_ = 0;
  std::vector<bool> updated_, owns_tied_;  // by unit
  Holders<InputSlot> inputs_;
  Holders<StagingSlot> staging_;
  Holders<ParameterSlot> brought_;  // parameters that no fetch has taken yet
  // The slots that are used next.
  GradientBuffer next_gradient_;
  HostGradientSlot next_host_slot_;
  StagingSlot next_staging_;
  StateSlot next_state_;
  ParameterSlot next_parameters_;
  std::vector<UnitId> to_drives_;  // units whose inputs go to drives, in order
  std::vector<UnitId> to_read_;    // units of to_drives_ that are not read back yet
  std::ptrdiff_t to_commit_ = 0;   // units to write before the commit; 0: no commit
  DerivedWaits waits_;
  StepSchedule out_;
};

}  // namespace

StepSchedule build_schedule(const ScheduleInputs& inputs) {
  LONGSHORE_CHECK(inputs.model != nullptr && inputs.gradient_buffers >= 1);
  LONGSHORE_CHECK(inputs.gradient_ring == 0 ||
                  (inputs.overlap == UpdateOverlap::kBackward && computes(inputs.pass)))
      << "other updates need every unit's gradient at once";
  LONGSHORE_CHECK(inputs.input_slots == 0 || inputs.input_slots >= 2) << inputs.input_slots;
  LONGSHORE_CHECK(inputs.input_staging == 0 || inputs.input_slots > 0) << inputs.input_staging;
  LONGSHORE_CHECK(!inputs.commits || inputs.state_slots > 0) << "nothing is written";
  if (!computes(inputs.pass)) return Builder(inputs).build_updates();
  return Builder(inputs).build();
}

}  // namespace longshore
