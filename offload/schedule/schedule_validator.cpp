#include "offload/schedule/schedule_validator.h"

#include <algorithm>
#include <array>
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
constexpr bool kWrites = true;
using namespace validation;

class Validator {
  using enum OpKind;
  using enum Memory;

 public:
  Validator(const StepSchedule& schedule, const ScheduleInputs& inputs)
      : schedule_(schedule), in_(inputs), before_(schedule), places_(inputs) {
    make_units();
    const std::vector<UnitId> order = execution_order(*in_.model, in_.pass);
    for (size_t i = 0; i < order.size(); ++i) {
      const bool backward = in_.pass == Pass::kTrain && i + 1 >= in_.model->units.size();
      compute_order_.push_back({backward ? kBackward : kForward, order[i]});
    }
  }

  std::vector<ScheduleFinding> run() {
    for (size_t i = 0; i < schedule_.ops.size(); ++i) {
      now_ = static_cast<int32_t>(i);
      const Op& op = schedule_.ops[i];
      taken_.assign(op.accesses.size(), false);
      if (op.unit.value < 0 || op.unit.value >= static_cast<int32_t>(units_.size())) {
        report("there is no such unit");
        continue;
      }
      check_after(op);
      check_collective(op);
      (this->*kChecks.at(static_cast<size_t>(op.kind)))(op);
      check_surplus(op);
      state(op.unit).done.at(static_cast<size_t>(op.kind)) = true;
    }
    now_ = kNobody;
    check_end();
    return std::move(findings_);
  }

 private:
  void make_units() {
    for (const UnitSpec& unit : in_.model->units) {
      UnitState& state = units_.emplace_back();
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

  void expect_done(int32_t other, const Place& place, const char* what) {
    if (other == kNobody || other == now_ || before_.ordered(other, now_)) return;
    report(place.name + " may still be " + what + " by " + text_of(other));
  }
  void read(Place& place) {
    expect_done(place.writer, place, "written");
    place.readers.push_back(now_);
  }
  void write(Place& place) {
    expect_done(place.writer, place, "written");
    for (int32_t reader : place.readers) expect_done(reader, place, "read");
    place.writer = now_;
    place.readers.clear();
  }

  // ---- Declared accesses. The function of each kind of operation takes the accesses that the
  // operation must declare; the rules about races and contents apply to the accesses taken.

  // Takes the next access to such memory, with data of `unit`; returns null where the operation
  // declares none or the plan has no such memory.
  Place* take(Memory memory, UnitId unit, bool writes) {
    const std::vector<Access>& accesses = schedule_.ops[static_cast<size_t>(now_)].accesses;
    size_t i = 0;
    const auto matches = [&](const Resource& resource) {
      return resource.memory == memory && (is_slot(memory) || resource.number == unit.value);
    };
    while (i < accesses.size() && (taken_[i] || !matches(accesses[i].resource))) ++i;
    if (i == accesses.size()) {
      report("names no " + (is_slot(memory) ? what_is(memory) : name_of(Resource(memory, unit))));
      return nullptr;
    }
    taken_[i] = true;
    const Access& access = accesses[i];
    Place* const place = places_.find(access.resource);
    const auto name = [&] { return name_of(access.resource); };
    if (access.unit != unit) report("names " + name() + " with other data than " + unit_text(unit));
    if (access.writes != writes) report((writes ? "only reads " : "writes ") + name());
    if (place == nullptr) report("the plan has no " + name());
    return place;
  }

  bool holds(const Place& place, UnitId unit) {
    if (place.unit == unit) return true;
    const std::string held = place.unit ? "holds " + unit_text(*place.unit) : "is empty";
    report(place.name + " " + held + ", not " + unit_text(unit));
    return false;
  }

  void put(Place& place, UnitId unit, bool complete) {
    if (place.unit && !place.used) {
      report(place.name + " loses " + unit_text(*place.unit) + ", which no operation used");
    }
    write(place);
    place.unit = unit;
    place.complete = complete;
    place.used = false;
  }

  // Takes a slot that the operation fills with the unit's data.
  void fill(Memory memory, UnitId unit) {
    if (Place* place = take(memory, unit, kWrites)) put(*place, unit, true);
  }
  // Takes memory with the data of `held`, by default of `unit`, which the operation consumes, and
  // changes if it `writes`. Returns null where the memory has other data.
  Place* use(Memory memory, UnitId unit, bool writes = false, std::optional<UnitId> held = {}) {
    Place* place = take(memory, unit, writes);
    if (place == nullptr || !holds(*place, held.value_or(unit))) return nullptr;
    if (memory == kParameterSlot && place->used) report(place->name + " was fetched already");
    writes ? write(*place) : read(*place);
    place->used = true;
    return place;
  }

  // Reports declared accesses that were not taken. The link is left to check_collective.
  void check_surplus(const Op& op) {
    for (size_t i = 0; i < op.accesses.size(); ++i) {
      const Resource& resource = op.accesses[i].resource;
      if (taken_[i] || resource.memory == kLink) continue;
      if (is_output(op, op.accesses[i])) {
        report("has no output slot");
      } else if (is_slot(resource.memory)) {
        report("uses no " + what_is(resource.memory));
      } else {
        report("does not access " + name_of(resource));
      }
    }
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

  void check_collective(const Op& op) {  // [Note: order of collectives]
    if (!is_collective(op.kind)) return;
    const int32_t before = std::exchange(last_collective_, now_);
    if (!in_.ordered_collectives || before == kNobody || before_.ordered(before, now_)) return;
    report("may run beside " + text_of(before) + ", in another order on each rank");
  }

  // ---- Parameters ----

  // Returns whether the update changes parameters in host memory; with files the trained ones.
  bool parameters_on_host() const { return in_.parameter_slots == 0 || in_.frozen_in_files(); }

  void read_state(const Op& op) {
    expect(!state(op.unit).did(kUpdate), "the state is read after its update");
    use(kDriveState, op.unit);
    fill(kStateSlot, op.unit);
  }

  void write_state(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(unit.did(kUpdate), "the state is written before its update");
    expect(!unit.did(kWriteState), "the state is written twice");
    expect(!committed_, "the state is written after the commit");
    if (parameters_on_host()) use(kHostParameters, op.unit);
    use(kDriveState, op.unit, kWrites);
    use(kStateSlot, op.unit);
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
    for (const UnitSpec& spec : in_.model->units) {
      const UnitState& unit = state(spec.id);
      use(kDriveState, spec.id);
      if (parameters_on_host()) use(kHostParameters, spec.id);
      if (!unit.trainable || in_.pass == Pass::kCommit) continue;
      expect(unit.did(kWriteState),
             name_of(Resource(kDriveState, spec.id)) + " is committed before it is written");
    }
    for (int32_t i = 0; i < in_.state_slots; ++i) {
      if (Place* slot = take(kStateSlot, UnitId(), kWrites)) write(*slot);
    }
  }

  void update(const Op& op) {
    UnitState& unit = state(op.unit);
    const bool alone = in_.pass == Pass::kUpdates || in_.pass == Pass::kSweep;
    expect(alone || (in_.pass == Pass::kTrain && in_.overlap != UpdateOverlap::kNone),
           "this pass has no updates");
    expect(unit.trainable || in_.pass == Pass::kSweep, "nothing of the unit is trained");
    expect(!unit.did(kUpdate), "the unit is updated twice");
    if (!alone && in_.overlap == UpdateOverlap::kBackward) {
      expect(unit.did(kDrain), "the unit's gradient is not in host memory yet");
    } else {
      expect(!unit.did(kDrain), "the last step's gradient is overwritten");
      expect(!unit.did(kFetch), "the unit was fetched before its update");
    }
    if (in_.pass != Pass::kSweep && in_.gradient_ring == 0) {
      use(kHostGradient, op.unit);
    } else if (in_.pass != Pass::kSweep) {
      use(kHostGradientSlot, op.unit);
    }
    update_parameters(op);
  }

  // Checks the slots in which the update finds the state and leaves the parameters.
  void update_parameters(const Op& op) {
    if (parameters_on_host()) use(kHostParameters, op.unit, kWrites);
    if (in_.state_slots > 0) {
      use(kStateSlot, op.unit, kWrites);
    } else {
      expect(!op.find<StateSlot>(), "the state is in host memory");
    }
    if (!op.find<ParameterSlot>() || !expect(in_.state_slots > 0, "files are only read")) return;
    fill(kParameterSlot, op.unit);
  }

  void read_parameters(const Op& op) {
    const UnitState& unit = state(op.unit);
    if (in_.frozen_in_files()) {
      expect(unit.in_files, "the unit needs nothing from files");
    } else {
      if (unit.did(kUpdate))
        expect(unit.did(kWriteState), "the parameters are not on the drives yet");
      use(kDriveState, op.unit);
    }
    fill(kParameterSlot, op.unit);
  }

  Place* one_slot(const Op& op) {
    const std::vector<Placed> placed = op.placed();
    const bool one = placed.size() == 1 && placed.front().unit == op.unit;
    if (!expect(one, "must name one slot, of the unit itself")) return nullptr;
    return take(kDeviceSlot, op.unit, kWrites);
  }

  void fetch(const Op& op) {
    UnitState& unit = state(op.unit);
    const bool updates = in_.pass == Pass::kTrain && unit.trainable;
    if (updates && in_.overlap == UpdateOverlap::kForward) {
      expect(unit.did(kUpdate), "the unit is fetched before its update");
    }
    if (updates && in_.overlap == UpdateOverlap::kBackward) {
      expect(!unit.did(kUpdate), "the unit is fetched after its update");
    }
    if (parameters_on_host()) use(kHostParameters, op.unit);
    // With files the fetch first adds the trained parameters to the slot.
    const bool files = in_.frozen_in_files();
    if (in_.parameter_slots == 0 || (files && !unit.in_files)) {
      expect(!op.find<ParameterSlot>(), "the parameters are in host memory");
    } else {
      use(kParameterSlot, op.unit, files);
    }
    if (Place* slot = one_slot(op)) put(*slot, op.unit, !in_.gathers);
  }

  void gather(const Op& op) {
    expect(in_.gathers, "nothing is gathered: the rank fetches whole units");
    Place* slot = one_slot(op);
    if (slot == nullptr || !holds(*slot, op.unit)) return;
    expect(!slot->complete, slot->name + " is gathered already");
    write(*slot);
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
    for (const Placed& placed : op.placed()) {
      leased.push_back(placed.unit);
      const Place* slot = use(kDeviceSlot, placed.unit);
      expect(slot == nullptr || slot->complete,
             what_is(kDeviceSlot) + " " + std::to_string(placed.slot.value) + " is not gathered");
    }
    const Half half = op.kind == kBackward ? Half::kBackward : Half::kForward;
    expect(leased == units_leased_for(in_.model->unit(op.unit), half),
           "leases other units than the unit and the owners of its tied parameters");
    const SharedInputGroup* const run = run_of(op.unit);
    if (run == nullptr) return;
    const bool adds_results =
        run->keeps_results() && op.kind == kForward && in_.pass == Pass::kTrain;
    use(kInputSlot, op.unit, adds_results, run->first);
  }

  // Returns the run of the unit's offloaded input; null where it has none.
  const SharedInputGroup* run_of(UnitId unit) const {
    const bool known = unit.value < static_cast<int32_t>(units_.size());
    return in_.input_slots > 0 && known ? runs_.of(unit) : nullptr;
  }

  void forward(const Op& op) {
    compute(op);
    const UnitId next(op.unit.value + 1);
    const SharedInputGroup* const run = run_of(next);
    if (run == nullptr) return;
    if (run->first == next) return fill(kInputSlot, next);
    use(kInputSlot, next, kWrites, run->first);
  }

  void backward(const Op& op) {
    compute(op);
    const UnitSpec& spec = in_.model->unit(op.unit);
    for (UnitId owner : units_leased_for(spec)) {
      if (owner == op.unit ? state(owner).trainable : adds_to(*in_.model, spec, owner)) {
        add_to(owner);
      }
    }
  }

  // Checks that the operation may add to the gradient of `owner`.
  void add_to(UnitId owner) {
    UnitState& unit = state(owner);
    --unit.adders;
    expect(!unit.did(kReduce) && !unit.did(kDrain),
           "adds to the gradient of " + unit_text(owner) + ", which is gone already");
    if (unit.owns_tied) {
      use(kWaitingGradient, owner, kWrites);
    } else {
      fill(kGradientBuffer, owner);
    }
  }

  // ---- Gradients ----

  // Returns the place of the unit's whole gradient; reports a finding and returns null if absent.
  Place* gradient(const Op& op, bool writes = false) {
    const UnitState& unit = state(op.unit);
    if (!expect(unit.trainable, "nothing of the unit is trained")) return nullptr;
    expect(unit.adders == 0, "not all backward operations have added to the gradient");
    return use(unit.owns_tied ? kWaitingGradient : kGradientBuffer, op.unit, writes);
  }

  void reduce(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(in_.reduces, "nothing is reduced: the rank has the whole sum");
    expect(!unit.did(kReduce), "the gradient is reduced twice");
    expect(!unit.did(kDrain), "the gradient was drained before");
    if (Place* place = gradient(op, kWrites)) place->used = false;
  }

  void drain(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(!unit.did(kDrain), "the gradient is drained twice");
    if (in_.gradient_ring == 0) {
      use(kHostGradient, op.unit, kWrites);
    } else {
      fill(kHostGradientSlot, op.unit);
    }
    if (gradient(op) == nullptr) return;
    expect(unit.did(kReduce) || !in_.reduces, "the gradient is not reduced");
  }

  // ---- Activation checkpoints ----

  void save_input(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(in_.pass == Pass::kTrain, "nothing is kept in this pass");
    expect(!unit.did(kSaveInput), "the input is saved twice");
    if (const SharedInputGroup* const run = run_of(op.unit)) {
      const UnitId writer = last_writer(*run);
      expect(state(writer).did(kForward), "is before " + unit_text(writer) + " wrote its part");
    }
    if (in_.input_staging == 0) {
      use(kHostCheckpoint, op.unit, kWrites);
    } else {
      fill(kStagingSlot, op.unit);
    }
    use(kInputSlot, op.unit);
  }

  void write_input(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(!unit.did(kWriteInput), "the input is written twice");
    use(kStagingSlot, op.unit);
    use(kDriveCheckpoint, op.unit, kWrites);
  }

  void read_input(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(unit.did(kWriteInput), "the input is not on the drives");
    use(kDriveCheckpoint, op.unit);
    fill(kStagingSlot, op.unit);
  }

  void load_input(const Op& op) {
    UnitState& unit = state(op.unit);
    expect(unit.did(kSaveInput), "the input was not saved");
    if (in_.input_staging == 0) {
      use(kHostCheckpoint, op.unit);
    } else {
      use(kStagingSlot, op.unit);
    }
    fill(kInputSlot, op.unit);
  }

  // ---- The whole pass ----

  void check_end() {
    expect(computed_ >= compute_order_.size(), "the pass ends after " + std::to_string(computed_) +
                                                   " of " + std::to_string(compute_order_.size()) +
                                                   " executions");
    for (size_t memory = 0; memory < kMemoryCount; ++memory) {
      for (const Place& place : places_.of(static_cast<Memory>(memory))) {
        expect(!place.unit || place.used, place.name + " ends with " +
                                              unit_text(place.unit.value_or(UnitId())) +
                                              ", which no operation used");
      }
    }
    expect(committed_ || !commits(), "the state is never committed");
    if (in_.pass == Pass::kCommit) return;
    for (size_t i = 0; i < units_.size(); ++i) {
      const UnitState& unit = units_[i];
      const std::string name = unit_text(UnitId(static_cast<int32_t>(i)));
      expect(unit.did(kLoadInput) || !unit.did(kSaveInput),
             "the input of " + name + " is saved but never used");
      expect(unit.did(kReadInput) || !unit.did(kWriteInput),
             "the input of " + name + " is written but never used");
      expect(unit.did(kWriteState) || !unit.did(kUpdate) || in_.state_slots == 0,
             "the updated state of " + name + " is never written");
      if (in_.pass == Pass::kForward || !(unit.trainable || in_.pass == Pass::kSweep)) continue;
      if (!computes(in_.pass)) {
        expect(unit.did(kUpdate), name + " is never updated");
        continue;
      }
      expect(unit.did(kDrain), "the gradient of " + name + " is never drained");
      expect(unit.did(kUpdate) || in_.overlap == UpdateOverlap::kNone, name + " is never updated");
    }
  }

  // In the order of OpKind.
  static constexpr std::array<void (Validator::*)(const Op&), kOpKindCount> kChecks = {
      &Validator::read_state,  &Validator::read_parameters, &Validator::read_input,
      &Validator::update,      &Validator::fetch,           &Validator::gather,
      &Validator::load_input,  &Validator::forward,         &Validator::backward,
      &Validator::save_input,  &Validator::reduce,          &Validator::drain,
      &Validator::write_state, &Validator::write_input,     &Validator::commit};

  const StepSchedule& schedule_;
  const ScheduleInputs& in_;
  SharedInputGroups runs_ = runs_of(in_);
  HappensBefore before_;
  std::vector<UnitState> units_;
  Places places_;
  std::vector<bool> taken_;  // by access of the operation under check
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
