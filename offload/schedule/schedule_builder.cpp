// build_schedule: goes through the pass plan once and writes every operation with its dependencies.
//
// The order of issue of one execution is: fetches of units, its compute, then the operations that
// move its results. Fetches for later executions are issued before the execution computes, so they
// overlap with it.
#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

#include "base/errors.h"
#include "offload/schedule/step_schedule.h"
#include "shard/input_tier.h"

namespace longshore {
namespace {

constexpr int32_t kNone = -1;

Bytes bytes_of(const std::vector<Bytes>& by_unit, UnitId unit) {
  return by_unit.empty() ? 0 : by_unit.at(static_cast<size_t>(unit.value));
}

// Reachable: which operations are done when another begins, by the waits and tracks so far. The
// builder leaves out implied waits with it; the validator has its own order (HappensBefore).
class Reachable {
 public:
  // Adds the next operation and returns the waits of `after` that neither its track nor another
  // wait implies. Both lists are sorted.
  std::vector<int32_t> add(OpKind kind, const std::vector<int32_t>& after) {
    const auto id = static_cast<int32_t>(ops_.size());
    const size_t track = turns_.next(kind);
    Done done = ends_[track] == kNone ? kNothing : at(ends_[track]).done;
    std::vector<int32_t> needed;
    // A wait can only be implied by later ones.
    for (const int32_t wait : std::views::reverse(after)) {
      if (done[at(wait).track] >= wait) continue;
      std::ranges::transform(done, at(wait).done, done.begin(), std::ranges::max);
      needed.insert(needed.begin(), wait);
    }
    done[track] = ends_[track] = id;
    ops_.push_back({track, done});
    return needed;
  }

 private:
  // By track: the last operation that is done; all before it are too.
  using Done = std::array<int32_t, kTrackCount>;
  struct Reached {
    size_t track;
    Done done;  // once the operation is
  };
  static constexpr Done kNothing = [] {
    Done none{};
    none.fill(kNone);
    return none;
  }();
  const Reached& at(int32_t op) const { return ops_[static_cast<size_t>(op)]; }

  TrackTurns turns_;
  Done ends_ = kNothing;  // by track: its last operation
  std::vector<Reached> ops_;
};

class Builder {
 public:
  explicit Builder(const ScheduleInputs& inputs)
      : in_(inputs),
        runs_(*inputs.model, inputs.keep_results),
        units_(inputs.model->units.size()),
        updated_(units_, kNone),
        filled_(units_, kNone),
        owns_tied_(units_, false) {
    for (const UnitSpec& unit : in_.model->units) {
      for (ParamRef ref : unit.tied) owns_tied_[index(ref.unit)] = true;
    }
    int32_t slots = 0;
    for (const UnitExecution& execution : in_.executions.executions) {
      for (const Placed& placed : execution.fetches) slots = std::max(slots, placed.slot.value + 1);
    }
    readers_.resize(static_cast<size_t>(slots));
    gradient_used_.assign(static_cast<size_t>(in_.gradient_buffers), kNone);
    host_slot_used_.assign(static_cast<size_t>(in_.gradient_ring), kNone);
    inputs_.resize(static_cast<size_t>(in_.input_slots));
    states_.resize(static_cast<size_t>(in_.state_slots));
    parameters_.resize(static_cast<size_t>(in_.parameter_slots));
    state_written_.assign(units_, kNone);
    staging_.resize(static_cast<size_t>(in_.input_staging));
    if (in_.input_staging > 0 && in_.pass == Pass::kTrain) choose_written();
    if (in_.commits && in_.pass != Pass::kSweep) to_commit_ = trained_units();
  }

  StepSchedule build_updates() {
    if (in_.pass == Pass::kCommit) {
      add({.kind = OpKind::kCommit, .bytes = in_.commit_bytes});
      return std::move(out_);
    }
    for (const UnitSpec& unit : in_.model->units) {
      if (in_.pass == Pass::kUpdates && !unit.has_trainable()) continue;
      add_update({.kind = OpKind::kUpdate, .unit = unit.id}, /*passes=*/false);
    }
    return std::move(out_);
  }

  StepSchedule build() {
    const std::vector<UnitExecution>& executions = in_.executions.executions;
    for (size_t i = 0; i < executions.size(); ++i) {
      visit_ = i;
      for (const Placed& placed : executions[i].fetches) add_fetch(placed);
      if (in_.pass == Pass::kTrain && i >= first_backward()) {
        add_backward(executions[i]);
      } else {
        add_forward(executions[i]);
      }
    }
    return std::move(out_);
  }

 private:
  // The contents of a slot of inputs, state or parameters, and the last operations that used it.
  struct SlotUse {
    std::optional<UnitId> unit = {};
    int32_t written = kNone;          // the op that filled it
    std::vector<int32_t> users = {};  // ops that read it since
  };

  // Returns the slot whose turn it is among `count` slots in rotation.
  template <typename Slot>
  static Slot take_turn(Slot& next, int32_t count) {
    return std::exchange(next, Slot((next.value + 1) % count));
  }

  static size_t index(UnitId unit) { return static_cast<size_t>(unit.value); }
  UnitId last() const { return in_.model->units.back().id; }
  // The loss is the first execution of backward.
  size_t first_backward() const { return units_ - 1; }

  int32_t add(Op op) {
    const bool collective = is_collective(op.kind);
    if (collective && in_.ordered_collectives) op.after.push_back(last_collective_);
    std::erase(op.after, kNone);
    std::ranges::sort(op.after);
    const auto same = std::ranges::unique(op.after);
    op.after.erase(same.begin(), same.end());
    op.after = reachable_.add(op.kind, op.after);
    out_.ops.push_back(std::move(op));
    const auto id = static_cast<int32_t>(out_.ops.size()) - 1;
    if (collective) last_collective_ = id;
    return id;
  }

  // ---- Updates

  // Adds read, update and write of a unit's state; `update` already has its other dependencies.
  // With `passes` the update leaves the parameters in a slot, from which the next fetch takes them.
  void add_update(Op update, bool passes) {
    const UnitId unit = update.unit;
    update.bytes = bytes_of(in_.update_bytes, unit);
    std::optional<StateSlot> slot;
    if (in_.state_slots > 0) {
      slot = take_turn(next_state_, in_.state_slots);
      Op read{.kind = OpKind::kReadState,
              .unit = unit,
              .state = slot,
              .bytes = bytes_of(in_.state_read_bytes, unit)};
      claim(states_[*slot], unit, read);
      update.after.push_back(add(std::move(read)));
      update.state = slot;
    }
    if (passes && parameters_on_drives()) update.parameters = claim_parameters(unit, update);
    const std::optional<ParameterSlot> parameters = update.parameters;
    const int32_t id = updated_[index(unit)] = add(std::move(update));
    if (parameters) parameters_[*parameters].written = id;
    if (!slot) return;
    state_written_[index(unit)] = add({.kind = OpKind::kWriteState,
                                       .unit = unit,
                                       .state = slot,
                                       .after = {id},
                                       .bytes = bytes_of(in_.state_written_bytes, unit)});
    const int32_t written = state_written_[index(unit)];
    states_[*slot].written = written;
    if (to_commit_ > 0 && --to_commit_ == 0) add_commit(written);
    write_before_ = written;
  }

  std::ptrdiff_t trained_units() const {
    return std::ranges::count_if(in_.model->units, &UnitSpec::has_trainable);
  }

  // Adds the commit behind the last unit's write. It runs beside all later operations, because
  // nothing that is written changes before the next pass. Writes alternate between two tracks, and
  // the last write of each track implies the earlier ones.
  void add_commit(int32_t last_write) {
    add({.kind = OpKind::kCommit, .after = {write_before_, last_write}, .bytes = in_.commit_bytes});
  }

  // Claims the next parameter slot, which `op` fills.
  ParameterSlot claim_parameters(UnitId unit, Op& op) {
    const ParameterSlot slot = take_turn(next_parameters_, in_.parameter_slots);
    claim(parameters_[slot], unit, op);
    return slot;
  }

  void add_forward_update(UnitId unit) {
    if (in_.overlap != UpdateOverlap::kForward || in_.pass != Pass::kTrain) return;
    if (!in_.model->unit(unit).has_trainable() || updated_[index(unit)] != kNone) return;
    add_update({.kind = OpKind::kUpdate, .unit = unit}, /*passes=*/true);
  }

  // ---- Parameters

  bool parameters_on_drives() const { return in_.parameter_slots > 0 && in_.state_slots > 0; }

  // Returns whether the unit's parameters pass through a parameter slot.
  bool has_slot(UnitId unit) const {
    return parameters_on_drives() || in_.reads_files(in_.model->unit(unit));
  }

  // Returns the slot that has the unit's parameters for the next fetch: the one that the update
  // left them in, or one that a new read fills. No update changes frozen parameters in files, so
  // their read waits for the slot alone.
  ParameterSlot bring_parameters(UnitId unit) {
    for (int32_t i = 0; i < in_.parameter_slots; ++i) {
      const SlotUse& use = parameters_[ParameterSlot(i)];
      if (use.unit == unit && use.users.empty()) return ParameterSlot(i);
    }
    Op read{.kind = OpKind::kReadParameters,
            .unit = unit,
            .after = {state_written_[index(unit)]},
            .bytes = bytes_of(in_.parameter_read_bytes, unit)};
    const ParameterSlot slot = claim_parameters(unit, read);
    read.parameters = slot;
    parameters_[slot].written = add(std::move(read));
    return slot;
  }

  void add_fetch(const Placed& placed) {
    add_forward_update(placed.unit);
    Op fetch{.kind = OpKind::kFetch, .unit = placed.unit, .slots = {placed}};
    fetch.after = std::exchange(readers_[placed.slot], {});
    if (has_slot(placed.unit)) {
      fetch.parameters = bring_parameters(placed.unit);
      fetch.after.push_back(parameters_[*fetch.parameters].written);
    }
    if (!parameters_on_drives()) fetch.after.push_back(updated_[index(placed.unit)]);
    fetch.bytes = bytes_of(in_.fetch_bytes, placed.unit);
    const std::optional<ParameterSlot> parameters = fetch.parameters;
    int32_t filled = add(std::move(fetch));
    if (parameters) parameters_[*parameters].users.push_back(filled);
    if (in_.gathers) {
      filled = add({.kind = OpKind::kGather,
                    .unit = placed.unit,
                    .slots = {placed},
                    .after = {filled},
                    .bytes = bytes_of(in_.gather_bytes, placed.unit)});
    }
    filled_[index(placed.unit)] = filled;
  }

  // Makes a compute operation that waits for the slots which the execution leases.
  Op compute(OpKind kind, const UnitExecution& execution) const {
    Op op{.kind = kind, .unit = execution.unit, .slots = execution.leases};
    for (const Placed& placed : execution.leases) op.after.push_back(filled_[index(placed.unit)]);
    return op;
  }

  void add_compute(Op op) {
    const std::vector<Placed> leases = op.slots;
    const int32_t id = add(std::move(op));
    for (const Placed& placed : leases) readers_[placed.slot].push_back(id);
  }

  void add_forward(const UnitExecution& execution) {
    Op op = compute(OpKind::kForward, execution);
    const SharedInputGroup* const from = run_of(execution.unit);
    const UnitId next(execution.unit.value + 1);
    const SharedInputGroup* const to = execution.unit == last() ? nullptr : run_of(next);
    if (from != nullptr) op.input = find_input(*from);
    if (to != nullptr) op.output = to == from ? *op.input : claim_input(*to, op);
    const std::optional<InputSlot> input = op.input;
    const std::optional<InputSlot> output = op.output;
    add_compute(std::move(op));
    const auto id = static_cast<int32_t>(out_.ops.size()) - 1;
    if (input) inputs_[*input].users.push_back(id);
    const bool trains = in_.pass == Pass::kTrain;
    if (trains && from != nullptr && from->results) {
      inputs_[*input].written = id;
      if (execution.unit == from->last && is_saved(*from)) add_save(*from);
    }
    if (!output) return;
    inputs_[*output].written = id;
    // The save follows the last unit that writes a part of the run's input.
    if (trains && next == to->last && !to->results && is_saved(*to)) add_save(*to);
  }

  // Returns the run of the unit's offloaded input; null where it has none.
  const SharedInputGroup* run_of(UnitId unit) const {
    return in_.input_slots > 0 ? runs_.of(unit) : nullptr;
  }

  bool is_saved(const SharedInputGroup& run) const {
    return wanted_in_backward(run.last) && !stays(run);
  }

  bool wanted_in_backward(UnitId unit) const {
    const std::vector<UnitExecution>& executions = in_.executions.executions;
    return std::any_of(executions.begin() + static_cast<int64_t>(first_backward()),
                       executions.end(),
                       [unit](const UnitExecution& execution) { return execution.unit == unit; });
  }

  // Returns whether the run is still in its slot when backward needs it, as the last runs are.
  bool stays(const SharedInputGroup& run) const {
    return std::ssize(runs_.all()) - run.number < in_.input_slots;
  }

  template <typename Slot>
  static Slot find_unit(const SlotVector<Slot, SlotUse>& slots, UnitId unit) {
    const auto found = std::ranges::find(slots, std::optional(unit), &SlotUse::unit);
    LONGSHORE_CHECK(found != slots.end()) << "the input of unit " << unit << " is in no slot";
    return Slot(static_cast<int32_t>(found - slots.begin()));
  }
  InputSlot find_input(const SharedInputGroup& run) const { return find_unit(inputs_, run.first); }

  // Claims the slot for the input of `unit`, which `op` writes after all earlier uses of the slot.
  static void claim(SlotUse& slot, UnitId unit, Op& op) {
    op.after.push_back(slot.written);
    op.after.insert(op.after.end(), slot.users.begin(), slot.users.end());
    slot = {.unit = unit};
  }

  InputSlot claim_input(const SharedInputGroup& run, Op& op) {
    const InputSlot slot = run.slot(in_.input_slots);
    claim(inputs_[slot], run.first, op);
    return slot;
  }

  void add_save(const SharedInputGroup& run) {
    const UnitId unit = run.first;
    SlotUse& from = inputs_[find_input(run)];
    Op save{.kind = OpKind::kSaveInput,
            .unit = unit,
            .input = find_input(run),
            .after = {from.written},
            .bytes = bytes_of(in_.input_bytes, unit)};
    std::optional<StagingSlot> staging;
    if (in_.input_staging > 0) {
      save.staging = staging = take_turn(next_staging_, in_.input_staging);
      claim(staging_[*staging], unit, save);
    }
    const int32_t id = add(std::move(save));
    from.users.push_back(id);
    saved_.push_back({unit, id});
    if (staging) add_write(unit, *staging, id);
  }

  // ---- Activation checkpoints on drives. They are written in the order of the units and read in
  // reverse. The last ones are never written: backward finds them in their staging slots.

  void choose_written() {
    for (const SharedInputGroup& run : runs_.all()) {
      if (is_saved(run)) to_drives_.push_back(run.first);
    }
    to_drives_.resize(to_drives_.size() - std::min(to_drives_.size(), staging_.size()));
    to_read_ = to_drives_;
  }

  void add_write(UnitId unit, StagingSlot staging, int32_t saved) {
    SlotUse& slot = staging_[staging];
    slot.written = saved;
    if (std::ranges::find(to_drives_, unit) == to_drives_.end()) return;
    const int32_t id = add({.kind = OpKind::kWriteInput,
                            .unit = unit,
                            .staging = staging,
                            .after = {saved},
                            .bytes = bytes_of(in_.staged_input_bytes, unit)});
    slot.users.push_back(id);
    saved_.back().second = id;
  }

  // Reads the checkpoint that backward needs next into the staging slot that was just emptied.
  void add_read_ahead(StagingSlot staging) {
    if (to_read_.empty()) return;
    const UnitId unit = to_read_.back();
    to_read_.pop_back();
    Op read{.kind = OpKind::kReadInput,
            .unit = unit,
            .staging = staging,
            .after = {saved_as(unit)},
            .bytes = bytes_of(in_.staged_input_bytes, unit)};
    SlotUse& slot = staging_[staging];
    claim(slot, unit, read);
    slot.written = add(std::move(read));
  }

  // Returns the operation that saved the unit's input to its tier.
  int32_t saved_as(UnitId unit) const {
    const auto saved = std::ranges::find(saved_, unit, &std::pair<UnitId, int32_t>::first);
    LONGSHORE_CHECK(saved != saved_.end()) << "the input of unit " << unit << " was not saved";
    return saved->second;
  }

  void add_load(const SharedInputGroup& run) {
    const UnitId unit = run.first;
    for (const SlotUse& place : inputs_) {
      if (place.unit == unit) return;
    }
    Op load{.kind = OpKind::kLoadInput, .unit = unit, .bytes = bytes_of(in_.input_bytes, unit)};
    if (in_.input_staging == 0) {
      load.after.push_back(saved_as(unit));
      add_loaded(run, std::move(load));
      return;
    }
    const StagingSlot staging = find_unit(staging_, unit);
    load.staging = staging;
    load.after.push_back(staging_[staging].written);
    staging_[staging].users.push_back(add_loaded(run, std::move(load)));
    add_read_ahead(staging);
  }

  int32_t add_loaded(const SharedInputGroup& run, Op load) {
    load.input = claim_input(run, load);
    const InputSlot slot = *load.input;
    return inputs_[slot].written = add(std::move(load));
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

  void add_backward(const UnitExecution& execution) {
    Op op = compute(OpKind::kBackward, execution);
    const bool trains = in_.model->unit(execution.unit).has_trainable();
    const bool own_place = owns_tied_[index(execution.unit)];
    if (const SharedInputGroup* const run = run_of(execution.unit)) {
      add_load(*run);
      op.input = find_input(*run);
      op.after.push_back(inputs_[*op.input].written);
      add_loads_ahead(*run);
    }
    if (trains && !own_place) {
      op.gradient = take_turn(next_gradient_, in_.gradient_buffers);
      op.after.push_back(gradient_used_[*op.gradient]);
    }
    const std::optional<GradientBuffer> gradient = op.gradient;
    const std::optional<InputSlot> input = op.input;
    add_compute(std::move(op));
    const auto computed = static_cast<int32_t>(out_.ops.size()) - 1;
    if (input) inputs_[*input].users.push_back(computed);
    if (trains) add_gradient(execution.unit, gradient, computed);
  }

  void add_gradient(UnitId unit, std::optional<GradientBuffer> gradient, int32_t computed) {
    int32_t before = computed;
    if (in_.reduces) {
      before = add({.kind = OpKind::kReduce,
                    .unit = unit,
                    .gradient = gradient,
                    .after = {before},
                    .bytes = bytes_of(in_.reduce_bytes, unit)});
    }
    std::optional<HostGradientSlot> host_slot;
    int32_t freed = kNone;
    if (in_.gradient_ring > 0) {
      host_slot = take_turn(next_host_slot_, in_.gradient_ring);
      freed = host_slot_used_[*host_slot];
    }
    const int32_t drained = add({.kind = OpKind::kDrain,
                                 .unit = unit,
                                 .gradient = gradient,
                                 .host_slot = host_slot,
                                 .after = {before, freed},
                                 .bytes = bytes_of(in_.drain_bytes, unit)});
    if (gradient) gradient_used_[*gradient] = drained;
    if (in_.overlap != UpdateOverlap::kBackward) return;
    // The unit's own backward is the last to read it, and no later operation fetches it.
    add_update({.kind = OpKind::kUpdate, .unit = unit, .host_slot = host_slot, .after = {drained}},
               /*passes=*/false);
    if (host_slot) host_slot_used_[*host_slot] = updated_[index(unit)];
  }

  const ScheduleInputs& in_;
  SharedInputGroups runs_;
  size_t units_;
  size_t visit_ = 0;
  std::vector<int32_t> updated_;                          // by unit: its kUpdate in this schedule
  std::vector<int32_t> filled_;                           // by unit: the last kFetch or kGather
  std::vector<bool> owns_tied_;                           // by unit
  SlotVector<DeviceSlot, std::vector<int32_t>> readers_;  // readers since the last fill
  SlotVector<GradientBuffer, int32_t> gradient_used_;     // the last kDrain
  SlotVector<HostGradientSlot, int32_t> host_slot_used_;  // the last kUpdate
  SlotVector<InputSlot, SlotUse> inputs_;
  SlotVector<StagingSlot, SlotUse> staging_;
  SlotVector<StateSlot, SlotUse> states_;
  SlotVector<ParameterSlot, SlotUse> parameters_;
  // The slots that are used next.
  GradientBuffer next_gradient_;
  HostGradientSlot next_host_slot_;
  StagingSlot next_staging_;
  StateSlot next_state_;
  ParameterSlot next_parameters_;
  std::vector<int32_t> state_written_;             // by unit: its kWriteState in this schedule
  std::vector<UnitId> to_drives_;                  // units whose inputs go to drives, in order
  std::vector<UnitId> to_read_;                    // units of to_drives_ that are not read back yet
  std::vector<std::pair<UnitId, int32_t>> saved_;  // with the operation that saved it
  std::ptrdiff_t to_commit_ = 0;                   // units to write before the commit; 0: no commit
  int32_t write_before_ = kNone;                   // the last kWriteState
  int32_t last_collective_ = kNone;
  Reachable reachable_;
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
