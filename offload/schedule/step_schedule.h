// StepSchedule: the operations of one pass, each with its lane and its dependencies. A value:
// `build_schedule` makes it from the pass plan before the first step, `validate_schedule` proves
// it, `StepExecutor` runs it, `print_schedule` shows it. Pure data, no device, any thread.
//
// Lanes run concurrently. Each lane consists of tracks. A track is a FIFO in schedule order. Drive
// lanes have two tracks for each kind of operation, used in rotation, so that a drive's queue is
// not empty between two operations, and a read that compute waits for never queues after a read of
// bulk state that has no slot yet. Commits have their own track; every other lane is one track. All
// other waits are listed in `after`.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/errors.h"
#include "offload/schedule/access.h"
#include "offload/schedule/pass_plan.h"
#include "shard/policy.h"

namespace longshore {

enum class Lane : uint8_t { kRead, kUpdate, kH2D, kGather, kCompute, kReduce, kD2H, kWrite };
inline constexpr size_t kLaneCount = 8;
std::string_view name_of(Lane lane);

enum class OpKind : uint8_t {
  kReadState,       // kRead: state from the drives to a state slot on the host
  kReadParameters,  // kRead: parameters from the drives, or frozen ones from the model's files, to
                    // a parameter slot on the host
  kReadInput,       // kRead: activation checkpoints from the drives to a staging slot on the host
  kUpdate,  // kUpdate: applies the pending update (Pass::kSweep: calls the visitor), in host memory
            // or in a state slot; may leave the parameters in a parameter slot
  kFetch,   // kH2D: parameters from host memory or a parameter slot to a device slot; before a
            // gather only the rank's part
  kGather,  // kGather: completes the slot with the other ranks' parts
  kLoadInput,   // kH2D: activation checkpoints from the host to the device
  kForward,     // kCompute: runs all micro-batches through the unit
  kBackward,    // kCompute: gradients of the unit; of the last unit with forward and loss
  kSaveInput,   // kD2H: activation checkpoints from the device to the host
  kReduce,      // kReduce: sums the gradient over ranks
  kDrain,       // kD2H: casts the rank's part of the gradient, sums its squares, copies it to host
                // memory
  kWriteState,  // kWrite: state from its state slot to the drives
  kWriteInput,  // kWrite: activation checkpoints from their staging slot to the drives
  kCommit,      // kWrite: makes the state of all ranks on drives durable; has no unit
};
inline constexpr size_t kOpKindCount = 15;
std::string_view name_of(OpKind kind);
struct Op;
// Returns a name such as "fetch block.3" or "commit".
std::string name_of(const Op& op, const ModelSpec& model);
Lane lane_of(OpKind kind);
// Returns whether all ranks run the operation together (gather, reduce).
bool is_collective(OpKind kind);

inline constexpr size_t kTrackCount = 17;
Lane lane_of_track(size_t track);
// Returns a name such as "compute", "read state 0" or "read state 1".
std::string name_of_track(size_t track);
// Returns whether all operations of the lane run one after the other.
bool is_one_track(Lane lane);

// One operation.
struct Op {
  OpKind kind = OpKind::kForward;
  UnitId unit = {};
  // All memory that it reads or writes. Slots come first, in the order of Memory. Compute names its
  // unit's device slot before those of the owners of tied parameters. An input slot holds the
  // activation checkpoints of consecutive units (SharedInputGroup); operations that move it name
  // the first of these units. kForward names the slot of its own input before that of the next
  // unit's.
  std::vector<Access> accesses = {};
  // Indices of earlier operations, other than those of its own track, that must end before this one
  // begins. The builder leaves out what the track and the other waits imply.
  std::vector<int32_t> after = {};
  Bytes bytes = 0;  // moved over the lane's link; 0 for compute

  // Returns the first slot of the kind that the operation names.
  template <typename Slot>
  std::optional<Slot> find() const {
    const auto named = std::ranges::find(
        accesses, kMemoryOf<Slot>, [](const Access& access) { return access.resource.memory; });
    return named == accesses.end() ? std::nullopt : std::optional(Slot(named->resource.number));
  }
  // Returns the slot that find() finds; CheckFailure if there is none.
  template <typename Slot>
  Slot slot() const {
    const std::optional<Slot> found = find<Slot>();
    LONGSHORE_CHECK(found.has_value()) << name_of(kind) << " of unit " << unit;
    return *found;
  }
  // Returns the device slots that it names, with the units in them.
  std::vector<Placed> placed() const;
};

// Returns whether kForward writes the next unit's input with the access.
bool is_output(const Op& op, const Access& access);
// Returns the slots and buffers that the operation names, such as {"slot 1", "gradient 0"}. A
// commit uses all state slots and names none.
std::vector<std::string> uses_of(const Op& op);

struct StepSchedule {
  std::vector<Op> ops;  // in the order in which they are issued
};

// TrackTurns: assigns operations to tracks, in the order of issue.
class TrackTurns {
 public:
  // Returns the track of the next operation.
  size_t next(OpKind kind);

 private:
  std::array<size_t, kOpKindCount> count_{};  // by kind: operations so far
};

// Returns the track of every operation.
std::vector<size_t> tracks_of(const StepSchedule& schedule);

// Describes an operation for findings and errors, such as "op 17 fetch unit 3 slot 1".
std::string describe_op(const StepSchedule& schedule, int32_t op);

// The schedules of a run, by pass.
struct PassSchedules {
  StepSchedule train;
  StepSchedule first;    // with kForward: a train pass without a pending update
  StepSchedule forward;  // evaluation, generation
  // `forward` without fetches: every unit is in its slot since the last forward pass, and no pass
  // but forward passes of this version ran since then. Empty where the slots do not hold all units.
  StepSchedule forward_again;
  StepSchedule flush;          // all pending updates, outside of a train pass
  StepSchedule sweep;          // sweep over the state of all units
  StepSchedule sweep_trained;  // sweep over the state of trained units
  StepSchedule commit;         // a commit alone; empty where nothing commits
};

// Lists the collectives of all passes in the order of issue, one per line ("train: gather unit 3").
// The lists of all ranks must be equal.
std::string describe_collectives(const PassSchedules& schedules);

struct ScheduleInputs {
  const ModelSpec* model = nullptr;  // must outlive the call
  Pass pass = Pass::kTrain;
  PassPlan executions;             // made by plan_pass
  std::vector<Placed> begin = {};  // what slots hold when the pass begins (PassInputs::begin)
  bool gathers = false;            // units are gathered from several ranks
  bool reduces = false;            // gradients are summed over several ranks
  // [Note: order of collectives] One collective, gather or sum, runs at a time, in the order of
  // issue. A GPU may run the kernels of two collectives one after the other, so ranks that issue
  // them in different orders would deadlock.
  bool ordered_collectives = false;
  int32_t gradient_buffers = 2;
  int32_t input_slots = 0;  // > 0: inputs are offloaded to the host through N slots; at least 2
  // Units keep these results together with their inputs (SharedInputGroup::results): kForward of a
  // train pass writes into its input slot, and the save follows the last unit of the run.
  KeptResults keep_results = KeptResults::kNone;
  // > 0: offloaded inputs are written to drives through N slots on the host.
  int32_t input_staging = 0;
  // > 0: state and parameters are on drives and pass through N slots each on the host. Parameter
  // slots without state slots: frozen parameters are in files that are only read, and pass through
  // the slots; trained parameters and their state are in host memory.
  int32_t state_slots = 0, parameter_slots = 0;
  bool frozen_in_files() const { return parameter_slots > 0 && state_slots == 0; }
  // By unit, with frozen parameters in files: whether host memory keeps them, so that fetches need
  // no read and no slot. Empty: none is kept.
  std::vector<bool> resident = {};
  // Returns whether every fetch of the unit needs a read of its model's files.
  bool reads_files(const UnitSpec& unit) const {
    return frozen_in_files() && unit.has_frozen() &&
           (resident.empty() || !resident.at(static_cast<size_t>(unit.id.value)));
  }
  bool commits = false;  // the pass that writes updates to the drives makes them durable
  UpdateOverlap overlap = UpdateOverlap::kForward;
  // kBackward, > 0: units reuse N host gradient slots in rotation; 0: each unit has its own.
  int32_t gradient_ring = 0;
  // Bytes of an operation, by kind and unit (the commit: one element); empty: not known.
  std::array<std::vector<Bytes>, kOpKindCount> bytes = {};
  std::vector<Bytes>& bytes_of(OpKind kind) { return bytes[static_cast<size_t>(kind)]; }
};

// Builds the schedule of a pass; throws CheckFailure where the inputs contradict each other.
// Pass::kUpdates updates every trained unit in order and commits; Pass::kSweep goes through all
// units.
StepSchedule build_schedule(const ScheduleInputs& inputs);

// HappensBefore: the partial order of a schedule's operations, which holds for any timing. It is
// the transitive closure of the FIFO order of each track and of every `after`. A value, made once
// per schedule; it stores operations x tracks numbers. Pure; any thread may call it.

class HappensBefore {
 public:
  // Ignores entries of `after` that are no earlier operation.
  explicit HappensBefore(const StepSchedule& schedule);

  // Returns whether `first` ends before `second` begins in every execution.
  bool ordered(int32_t first, int32_t second) const;
  bool operator==(const HappensBefore&) const = default;

 private:
  // A vector clock: by track, the number of its operations that are done when this one is.
  using Clock = std::array<int32_t, kTrackCount>;

  std::vector<size_t> tracks_;  // by operation
  std::vector<Clock> clocks_;
};

}  // namespace longshore
