#include "offload/schedule/schedule_validator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "offload/schedule/step_schedule.h"
#include "offload/schedule/validated_memory.h"
#include "shard/input_tier.h"

namespace longshore {
namespace {
constexpr int32_t kNobody = -1;
constexpr size_t kFindingsShown = 8;
using namespace validation;

class Validator {
 public:
  Validator(const StepSchedule& schedule, const ScheduleInputs& inputs)
      : schedule_(schedule), in_(inputs), before_(schedule), slots_(inputs) {
    make_units();
    const std::vector<UnitId> order = execution_order(*in_.model, in_.pass);
    for (size_t i = 0; i < order.size(); ++i) {
      const bool backward = in_.pass == Pass::kTrain && i + 1 >= in_.model->units.size();
      compute_order_.push_back({backward ? OpKind::kBackward : OpKind::kForward, order[i]});
    }
  }

  std::vector<ScheduleFinding> run() {
    for (size_t i = 0; i < schedule_.ops.size(); ++i) {
      now_ = static_cast<int32_t>(i);
      const Op& op = schedule_.ops[i];
      if (op.unit.value < 0 || op.unit.value >= static_cast<int32_t>(units_.size())) {
        report("there is no such unit");
        continue;
      }
      check_after(op);
      check_unused_fields(op);
      check_collective(op);
      check_op(op);
    }
    now_ = kNobody;
    check_end();
    return std::move(findings_);
  }

 private:
  void make_units() {
    for (const UnitSpec& unit : in_.model->units) {
      UnitState& state = units_.emplace_back();
      const std::string name = unit_text(unit.id);
      state.host_parameters.name = "the parameters of " + name + " in host memory";
      state.host_gradient.name = "the gradient of " + name + " in host memory";
      state.activation_checkpoint.name = "the activation checkpoint of " + name + " on the host";
      state.drive_state.name = "the state of " + name + " on the drives";
      state.drive_input.name = "the activation checkpoint of " + name + " on the drives";
      state.waiting.memory.name = "the waiting gradient of " + name;
      state.waiting.unit = unit.id;
      state.trainable = unit.has_trainable();
      state.in_files = in_.reads_files(unit);
      state.adders = state.trainable ? 1 : 0;
    }
    for (const UnitSpec& unit : in_.model->units) {
      for (UnitId owner : units_leased_for(unit)) {
        if (owner == unit.id) continue;
        state(owner).owns_tied = true;
        if (adds_to(*in_.model, unit, owner)) ++state(owner).adders;
      }
    }
  }

  UnitState& state(UnitId unit) { return units_.at(static_cast<size_t>(unit.value)); }
  std::string text_of(int32_t op) const { return describe_op(schedule_, op); }

  void report(const std::string& problem) {
    findings_.push_back({now_, (now_ == kNobody ? "" : text_of(now_) + ": ") + problem});
  }
  // Reports the problem unless `holds`; returns `holds`.
  bool expect(bool holds, const std::string& problem) {
    if (!holds) report(problem);
    return holds;
  }

  // ---- Races ----

  void expect_done(int32_t other, const Memory& memory, const char* what) {
    if (other == kNobody || other == now_ || before_.ordered(other, now_)) return;
    report(memory.name + " may still be " + what + " by " + text_of(other));
  }
  void read(Memory& memory) {
    expect_done(memory.writer, memory, "written");
    memory.readers.push_back(now_);
  }
  void write(Memory& memory) {
    expect_done(memory.writer, memory, "written");
    for (int32_t reader : memory.readers) expect_done(reader, memory, "read");
    memory.writer = now_;
    memory.readers.clear();
  }

  // ---- The order of issue ----

  void check_after(const Op& op) {
    for (int32_t other : op.after) {
      if (!expect(other >= 0 && other < now_,
                  "waits for op " + std::to_string(other) + ", which is not issued before it")) {
        continue;
      }
      const OpKind kind = schedule_.ops[static_cast<size_t>(other)].kind;
      expect(lane_of(kind) != lane_of(op.kind) || !is_one_track(lane_of(kind)),
             "waits for " + text_of(other) + " of its own lane");
    }
    expect(op.bytes >= 0, "has " + std::to_string(op.bytes) + " bytes");
  }

  void check_unused_fields(const Op& op) {
    const auto is = [&](std::initializer_list<OpKind> kinds) {
      return std::ranges::find(kinds, op.kind) != kinds.end();
    };
    using enum OpKind;
    expect(op.slots.empty() || is({kFetch, kGather, kForward, kBackward}), "uses no slot");
    expect(!op.gradient || is({kBackward, kReduce, kDrain}), "uses no gradient buffer");
    const bool ring = is({kUpdate, kDrain}) && in_.gradient_ring > 0;
    expect(!op.host_slot || ring, "uses no host gradient slot");
    expect(!op.input || is({kForward, kBackward, kSaveInput, kLoadInput}), "uses no input slot");
    expect(!op.output || is({kForward}), "has no output");
    const bool staged = is({kSaveInput, kWriteInput, kReadInput, kLoadInput});
    expect(!op.state || is({kReadState, kUpdate, kWriteState}), "uses no state slot");
    expect(!op.parameters || is({kReadParameters, kUpdate, kFetch}), "uses no parameter slot");
    expect(!op.staging || (staged && in_.input_staging > 0), "uses no staging slot");
  }

  void check_collective(const Op& op) {  // [Note: order of collectives]
    if (!is_collective(op.kind)) return;
    const int32_t before = std::exchange(last_collective_, now_);
    if (!in_.ordered_collectives || before == kNobody || before_.ordered(before, now_)) return;
    report("may run beside " + text_of(before) + ", in another order on each rank");
  }

  void check_op(const Op& op) {
    switch (op.kind) {
      case OpKind::kReadState:
        return read_state(op);
      case OpKind::kReadParameters:
        return read_parameters(op);
      case OpKind::kWriteState:
        return write_state(op);
      case OpKind::kCommit:
        return commit(op);
      case OpKind::kUpdate:
        return update(op);
      case OpKind::kFetch:
        return fetch(op);
      case OpKind::kGather:
        return gather(op);
      case OpKind::kReadInput:
        return read_input(op);
      case OpKind::kLoadInput:
        return load_input(op);
      case OpKind::kForward:
        return forward(op);
      case OpKind::kBackward:
        return backward(op);
      case OpKind::kSaveInput:
        return save_input(op);
      case OpKind::kWriteInput:
        return write_input(op);
      case OpKind::kReduce:
        return reduce(op);
      case OpKind::kDrain:
        return drain(op);
    }
  }

  // Returns slot `number`; reports a finding and returns null where the plan has no such slot.
  template <typename Slot>
  SlotUse* place(SlotVector<Slot, SlotUse>& places,
                 std::optional<std::type_identity_t<Slot>> number, const char* what) {
    if (!expect(number.has_value(), std::string("names no ") + what)) return nullptr;
    const int32_t value = number->value;
    const bool known = value >= 0 && value < std::ssize(places);
    if (!expect(known, std::string("the plan has no ") + what + " " + std::to_string(value))) {
      return nullptr;
    }
    return &places[*number];
  }

  bool holds(const SlotUse& place, UnitId unit) {
    const std::string held = place.unit ? "holds " + unit_text(*place.unit) : "is empty";
    return expect(place.unit == unit, place.memory.name + " " + held + ", not " + unit_text(unit));
  }

  void put(SlotUse& place, UnitId unit, bool complete) {
    expect(!place.unit || place.used,
           place.memory.name + " loses " + unit_text(*place.unit) + ", which no operation used");
    write(place.memory);
    place.unit = unit;
    place.complete = complete;
    place.used = false;
  }

  // ---- Parameters ----

  // Returns whether the update changes parameters in host memory; with files the trained ones.
  bool parameters_on_host() const { return in_.parameter_slots == 0 || in_.frozen_in_files(); }

  void read_state(const Op& op) {
    const UnitState& unit = state(op.unit);
    expect(!unit.updated, "the state is read after its update");
    read(state(op.unit).drive_state);
    if (SlotUse* slot = place(slots_.states, op.state, "state slot")) put(*slot, op.unit, true);
  }

  void write_state(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(unit.updated, "the state is written before its update");
    expect(!unit.state_written, "the state is written twice");
    expect(!committed_, "the state is written after the commit");
    unit.state_written = true;
    if (parameters_on_host()) read(unit.host_parameters);
    write(unit.drive_state);
    SlotUse* slot = place(slots_.states, op.state, "state slot");
    if (slot != nullptr && holds(*slot, op.unit)) {
      read(slot->memory);
      slot->used = true;
    }
  }

  // Returns whether this pass must commit: its own updates, or (Pass::kCommit) earlier ones.
  bool commits() const {
    if (in_.pass == Pass::kCommit) return true;
    const bool updates = in_.pass == Pass::kUpdates ||
                         (in_.pass == Pass::kTrain && in_.overlap != UpdateOverlap::kNone);
    return in_.commits && updates && in_.model->trainable_elements() > 0;
  }

  // Checks the commit of all state on drives. A unit without an update is copied through a slot.
  void commit(const Op& op) {
    expect(op.unit == UnitId(), "is of no unit");
    expect(commits(), "this pass commits nothing");
    expect(!committed_, "the state is committed twice");
    committed_ = true;
    for (UnitState& unit : units_) {
      if (unit.trainable && in_.pass != Pass::kCommit) {
        expect(unit.state_written, unit.drive_state.name + " is committed before it is written");
      }
      read(unit.drive_state);
      if (parameters_on_host()) read(unit.host_parameters);
    }
    for (SlotUse& slot : slots_.states) write(slot.memory);
  }

  void update(const Op& op) {
    UnitState& unit = state(op.unit);
    const bool alone = in_.pass == Pass::kUpdates || in_.pass == Pass::kSweep;
    expect(alone || (in_.pass == Pass::kTrain && in_.overlap != UpdateOverlap::kNone),
           "this pass has no updates");
    expect(unit.trainable || in_.pass == Pass::kSweep, "nothing of the unit is trained");
    expect(!unit.updated, "the unit is updated twice");
    if (!alone && in_.overlap == UpdateOverlap::kBackward) {
      expect(unit.drained, "the unit's gradient is not in host memory yet");
    } else {
      expect(!unit.drained, "the last step's gradient is overwritten");
      expect(!unit.fetched, "the unit was fetched before its update");
    }
    if (in_.pass == Pass::kSweep) {
      expect(!op.host_slot, "a state sweep has no gradients");
    } else if (in_.gradient_ring == 0) {
      read(unit.host_gradient);
    } else if (SlotUse* slot = place(slots_.host_gradients, op.host_slot, "host gradient slot");
               slot && holds(*slot, op.unit)) {
      read(slot->memory);
      slot->used = true;
    }
    update_parameters(op, unit);
    unit.updated = true;
  }

  // Checks the slots in which the update finds the state and leaves the parameters.
  void update_parameters(const Op& op, UnitState& unit) {
    if (parameters_on_host()) write(unit.host_parameters);
    if (in_.state_slots > 0) {
      SlotUse* slot = place(slots_.states, op.state, "state slot");
      if (slot != nullptr && holds(*slot, op.unit)) write(slot->memory);
    } else {
      expect(!op.state, "the state is in host memory");
    }
    if (!op.parameters || !expect(in_.state_slots > 0, "files are only read")) return;
    if (SlotUse* slot = place(slots_.parameters, op.parameters, "parameter slot")) {
      put(*slot, op.unit, true);
    }
  }

  void read_parameters(const Op& op) {
    UnitState& unit = state(op.unit);
    if (in_.frozen_in_files()) {
      expect(unit.in_files, "the unit needs nothing from files");
    } else {
      if (unit.updated) expect(unit.state_written, "the parameters are not on the drives yet");
      read(unit.drive_state);
    }
    if (SlotUse* slot = place(slots_.parameters, op.parameters, "parameter slot")) {
      put(*slot, op.unit, true);
    }
  }

  SlotUse* one_slot(const Op& op) {
    if (!expect(op.slots.size() == 1 && op.slots.front().unit == op.unit,
                "must name one slot, of the unit itself")) {
      return nullptr;
    }
    return place(slots_.device, op.slots.front().slot, "slot");
  }

  void fetch(const Op& op) {
    UnitState& unit = state(op.unit);
    const bool updates = in_.pass == Pass::kTrain && unit.trainable;
    if (updates && in_.overlap == UpdateOverlap::kForward) {
      expect(unit.updated, "the unit is fetched before its update");
    }
    if (updates && in_.overlap == UpdateOverlap::kBackward) {
      expect(!unit.updated, "the unit is fetched after its update");
    }
    unit.fetched = true;
    if (parameters_on_host()) read(unit.host_parameters);
    if (in_.parameter_slots == 0 || (in_.frozen_in_files() && !unit.in_files)) {
      expect(!op.parameters, "the parameters are in host memory");
    } else if (SlotUse* from = place(slots_.parameters, op.parameters, "parameter slot");
               from && holds(*from, op.unit)) {
      expect(!from->used, from->memory.name + " was fetched already");
      // With files the fetch first adds the trained parameters to the slot.
      in_.frozen_in_files() ? write(from->memory) : read(from->memory);
      from->used = true;
    }
    if (SlotUse* slot = one_slot(op)) put(*slot, op.unit, !in_.gathers);
  }

  void gather(const Op& op) {
    expect(in_.gathers, "nothing is gathered: the rank fetches whole units");
    SlotUse* slot = one_slot(op);
    if (slot == nullptr || !holds(*slot, op.unit)) return;
    expect(!slot->complete, slot->memory.name + " is gathered already");
    write(slot->memory);
    slot->complete = true;
  }

  // ---- Compute ----

  void compute(const Op& op) {
    const auto expected =
        computed_ < compute_order_.size() ? std::optional(compute_order_[computed_]) : std::nullopt;
    expect(expected == std::pair(op.kind, op.unit),
           expected ? "comes instead of " + std::string(name_of(expected->first)) + " " +
                          unit_text(expected->second)
                    : "comes after the last execution");
    ++computed_;
    std::vector<UnitId> leased;
    for (const Placed& placed : op.slots) {
      leased.push_back(placed.unit);
      SlotUse* slot = place(slots_.device, placed.slot, "slot");
      if (slot == nullptr || !holds(*slot, placed.unit)) continue;
      expect(slot->complete, slot->memory.name + " is not gathered");
      read(slot->memory);
      slot->used = true;
    }
    const Half half = op.kind == OpKind::kBackward ? Half::kBackward : Half::kForward;
    expect(leased == units_leased_for(in_.model->unit(op.unit), half),
           "leases other units than the unit and the owners of its tied parameters");
    take_input(op);
  }

  void take_input(const Op& op) {
    const SharedInputGroup* const run = run_of(op.unit);
    if (run == nullptr) {
      expect(!op.input, "has no input slot");
      return;
    }
    SlotUse* slot = place(slots_.inputs, op.input, "input slot");
    if (slot == nullptr || !holds(*slot, run->first)) return;
    read(slot->memory);
    slot->used = true;
    if (writes_results(*run, op, in_.pass)) write(slot->memory);
  }

  // Returns the run of the unit's offloaded input; null where it has none.
  const SharedInputGroup* run_of(UnitId unit) const {
    const bool known = unit.value < static_cast<int32_t>(units_.size());
    return in_.input_slots > 0 && known ? runs_.of(unit) : nullptr;
  }

  void forward(const Op& op) {
    compute(op);
    state(op.unit).wrote_output = true;
    const UnitId next(op.unit.value + 1);
    const SharedInputGroup* const run = run_of(next);
    if (run == nullptr) {
      expect(!op.output, "has no output slot");
      return;
    }
    SlotUse* slot = place(slots_.inputs, op.output, "input slot");
    if (slot == nullptr) return;
    if (run->first == next) return put(*slot, next, true);
    if (holds(*slot, run->first)) write(slot->memory);
  }

  void backward(const Op& op) {
    compute(op);
    const UnitSpec& spec = in_.model->unit(op.unit);
    for (UnitId owner : units_leased_for(spec)) {
      if (owner == op.unit ? state(owner).trainable : adds_to(*in_.model, spec, owner)) {
        add_to(owner, op);
      }
    }
    if (!state(op.unit).trainable) expect(!op.gradient, "nothing of the unit is trained");
  }

  // Checks that the operation may add to the gradient of `owner`.
  void add_to(UnitId owner, const Op& op) {
    UnitState& unit = state(owner);
    --unit.adders;
    expect(!unit.reduced && !unit.drained,
           "adds to the gradient of " + unit_text(owner) + ", which is gone already");
    if (unit.owns_tied) {
      if (owner == op.unit) expect(!op.gradient, "the gradient has a place of its own");
      write(unit.waiting.memory);
    } else if (SlotUse* buffer = place(slots_.gradients, op.gradient, "gradient buffer")) {
      put(*buffer, owner, !in_.reduces);
    }
  }

  // ---- Gradients ----

  // Returns the buffer of the unit's whole gradient; reports a finding and returns null if absent.
  SlotUse* gradient(const Op& op) {
    UnitState& unit = state(op.unit);
    if (!expect(unit.trainable, "nothing of the unit is trained")) return nullptr;
    expect(unit.adders == 0, "not all backward operations have added to the gradient");
    if (unit.owns_tied) {
      expect(!op.gradient, "the gradient has a place of its own");
      return &unit.waiting;
    }
    SlotUse* buffer = place(slots_.gradients, op.gradient, "gradient buffer");
    return buffer != nullptr && holds(*buffer, op.unit) ? buffer : nullptr;
  }

  void reduce(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(in_.reduces, "nothing is reduced: the rank has the whole sum");
    expect(!unit.reduced, "the gradient is reduced twice");
    expect(!unit.drained, "the gradient was drained before");
    unit.reduced = true;
    SlotUse* place = gradient(op);
    if (place == nullptr) return;
    write(place->memory);
    place->complete = true;
  }

  void drain(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(!unit.drained, "the gradient is drained twice");
    unit.drained = true;
    if (in_.gradient_ring == 0) {
      write(unit.host_gradient);
    } else if (SlotUse* host_slot =
                   place(slots_.host_gradients, op.host_slot, "host gradient slot")) {
      put(*host_slot, op.unit, true);
    }
    SlotUse* buffer = gradient(op);
    if (buffer == nullptr) return;
    expect(unit.reduced || !in_.reduces, "the gradient is not reduced");
    read(buffer->memory);
    buffer->used = true;
  }

  // ---- Activation checkpoints ----

  void save_input(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(in_.pass == Pass::kTrain, "nothing is kept in this pass");
    expect(!unit.saved, "the input is saved twice");
    unit.saved = true;
    if (const SharedInputGroup* const run = run_of(op.unit)) {
      const UnitId writer = last_writer(*run);
      expect(state(writer).wrote_output, "is before " + unit_text(writer) + " wrote its part");
    }
    if (in_.input_staging == 0) {
      write(unit.activation_checkpoint);
    } else if (SlotUse* staging = place(slots_.staging, op.staging, "staging slot")) {
      put(*staging, op.unit, true);
    }
    SlotUse* slot = place(slots_.inputs, op.input, "input slot");
    if (slot != nullptr && holds(*slot, op.unit)) read(slot->memory);
  }

  // Checks that the staging slot has the unit's input, and that the operation may read it.
  void take_staged(const Op& op) {
    SlotUse* staging = place(slots_.staging, op.staging, "staging slot");
    if (staging == nullptr || !holds(*staging, op.unit)) return;
    read(staging->memory);
    staging->used = true;
  }

  void write_input(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(!unit.written, "the input is written twice");
    unit.written = true;
    take_staged(op);
    write(unit.drive_input);
  }

  void read_input(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(unit.written, "the input is not on the drives");
    unit.read_back = true;
    read(unit.drive_input);
    if (SlotUse* slot = place(slots_.staging, op.staging, "staging slot"))
      put(*slot, op.unit, true);
  }

  void load_input(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(unit.saved, "the input was not saved");
    unit.loaded = true;
    if (in_.input_staging == 0) {
      read(unit.activation_checkpoint);
    } else {
      take_staged(op);
    }
    if (SlotUse* slot = place(slots_.inputs, op.input, "input slot")) put(*slot, op.unit, true);
  }

  // ---- The whole pass ----

  void check_end() {
    expect(computed_ >= compute_order_.size(), "the pass ends after " + std::to_string(computed_) +
                                                   " of " + std::to_string(compute_order_.size()) +
                                                   " executions");
    for (const std::vector<SlotUse>* places : std::initializer_list<const std::vector<SlotUse>*>{
             &slots_.device, &slots_.inputs, &slots_.staging, &slots_.states, &slots_.parameters,
             &slots_.host_gradients}) {
      for (const SlotUse& place : *places) {
        expect(!place.unit || place.used, place.memory.name + " ends with " +
                                              unit_text(place.unit.value_or(UnitId())) +
                                              ", which no operation used");
      }
    }
    expect(committed_ || !commits(), "the state is never committed");
    if (in_.pass == Pass::kCommit) return;
    for (size_t i = 0; i < units_.size(); ++i) {
      const UnitState& unit = units_[i];
      const std::string name = unit_text(UnitId(static_cast<int32_t>(i)));
      expect(unit.loaded || !unit.saved, "the input of " + name + " is saved but never used");
      expect(unit.read_back || !unit.written,
             "the input of " + name + " is written but never used");
      expect(unit.state_written || !unit.updated || in_.state_slots == 0,
             "the updated state of " + name + " is never written");
      if (in_.pass == Pass::kForward || !(unit.trainable || in_.pass == Pass::kSweep)) continue;
      if (!computes(in_.pass)) {
        expect(unit.updated, name + " is never updated");
        continue;
      }
      expect(unit.drained, "the gradient of " + name + " is never drained");
      expect(unit.updated || in_.overlap == UpdateOverlap::kNone, name + " is never updated");
    }
  }

  const StepSchedule& schedule_;
  const ScheduleInputs& in_;
  SharedInputGroups runs_ = runs_of(in_);
  HappensBefore before_;
  std::vector<UnitState> units_;
  PlannedSlots slots_;
  std::vector<std::pair<OpKind, UnitId>> compute_order_;
  size_t computed_ = 0;
  bool committed_ = false;
  int32_t now_ = kNobody, last_collective_ = kNobody;  // now_: the operation under check
  std::vector<ScheduleFinding> findings_;
};

}  // namespace

std::vector<ScheduleFinding> validate_schedule(const StepSchedule& schedule,
                                               const ScheduleInputs& inputs) {
  LONGSHORE_CHECK(inputs.model != nullptr);
  return Validator(schedule, inputs).run();
}

void check_step_schedule(const StepSchedule& schedule, const ScheduleInputs& inputs) {
  const std::vector<ScheduleFinding> findings = validate_schedule(schedule, inputs);
  if (findings.empty()) return;
  std::string text = "the schedule is not valid: " + std::to_string(findings.size()) + " findings";
  for (size_t i = 0; i < std::min(findings.size(), kFindingsShown); ++i) {
    text += "\n  " + findings[i].text;
  }
  throw CheckFailure(text);
}

}  // namespace longshore
