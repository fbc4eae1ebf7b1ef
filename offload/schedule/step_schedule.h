// StepSchedule: the operations of one pass, the lane that each runs on and what it waits for. A
// value: `build_schedule` makes it from the pass plan before the first step, `validate_schedule`
// proves it, `StepExecutor` runs it, `print_schedule` shows it. Pure data, no device, any thread.
//
// Lanes run side by side, and each of them consists of tracks. A track runs its operations one
// after the other, in the order of the schedule. The lanes of drives have two tracks for each kind
// of move, in turns: so a drive's queue never runs dry between two operations, and a read that
// compute waits for is never behind one of bulk state that has no slot yet. Commits have a track of
// theirs, every other lane is one track. Every other wait is written down in `after`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "offload/schedule/pass_plan.h"
#include "shard/policy.h"

namespace longshore {

enum class Lane : uint8_t { kRead, kUpdate, kH2D, kGather, kCompute, kReduce, kD2H, kWrite };
inline constexpr size_t kLaneCount = 8;
std::string_view name_of(Lane lane);

enum class OpKind : uint8_t {
  kReadState,       // kRead: the unit's state from the drives to a state slot on the host
  kReadParameters,  // kRead: the unit's parameters from the drives to a parameter slot on the host
  kReadInput,  // kRead: the unit's activation checkpoints from the drives to a staging slot on the
               // host
  kUpdate,  // kUpdate: applies the unit's pending update (Pass::kSweep: what the walk is for); at
            // home, or in its state slot, where it may leave the parameters in a parameter slot
  kFetch,  // kH2D: the unit's parameters from host memory, or from a parameter slot, to its slot on
           // the device; with a gather, the rank's part
  kGather,      // kGather: completes the slot from the other ranks' parts
  kLoadInput,   // kH2D: the unit's activation checkpoints back from the host
  kForward,     // kCompute: all micro-batches through the unit
  kBackward,    // kCompute: gradients of the unit; of the last unit with its forward and the loss
  kSaveInput,   // kD2H: the unit's activation checkpoints to the host
  kReduce,      // kReduce: sums the unit's gradient over ranks
  kDrain,       // kD2H: casts the rank's part of the gradient, sums its squares, copies it to host
                // memory
  kWriteState,  // kWrite: the unit's state from its state slot to the drives
  kWriteInput,  // kWrite: the unit's activation checkpoints from their staging slot to the drives
  kCommit,      // kWrite: makes the state on the drives durable, of all ranks together; of no unit
};
inline constexpr size_t kOpKindCount = 15;
std::string_view name_of(OpKind kind);
struct Op;
// "fetch block.3"; "commit".
std::string name_of(const Op& op, const ModelSpec& model);
Lane lane_of(OpKind kind);
// Whether ranks run the operation together: a gather or a sum over ranks.
bool is_collective(OpKind kind);

inline constexpr size_t kTrackCount = 17;
Lane lane_of_track(size_t track);
// "compute"; "read state 0" and "read state 1".
std::string name_of_track(size_t track);
// Whether all operations of the lane run one after the other.
bool is_one_track(Lane lane);

// One operation. What a kind does not use is empty.
struct Op {
  OpKind kind = OpKind::kForward;
  UnitId unit = {};
  // kFetch, kGather: the slot that is written; kForward, kBackward: the slots that are leased, the
  // unit's own first.
  std::vector<Placed> slots = {};
  // kBackward, kReduce, kDrain: the gradient buffer. Empty where the unit's gradient has a place of
  // its own (it owns_tied a parameter), and where nothing of the unit is trained.
  std::optional<int32_t> gradient = {};
  // kDrain: written; kUpdate: read: the place in the ring of gradients in host memory, where there
  // is one.
  std::optional<int32_t> host_slot = {};
  // Input slots, where inputs are offloaded to the host. A slot holds the activation checkpoints of
  // a run of units (SharedInputGroups); operations that move it name the run's first unit.
  std::optional<int32_t> input =
      {};  // kForward, kBackward: read; kSaveInput: read; kLoadInput: written
  // kForward: where the next unit's input is written: `input` itself within a run
  std::optional<int32_t> output = {};
  // State slot on the host, where the state is on drives: kReadState: written; kUpdate: read and
  // written; kWriteState: read.
  std::optional<int32_t> state = {};
  // Parameter slot on the host, where parameters are on drives: kReadParameters, kUpdate: written;
  // kFetch: read.
  std::optional<int32_t> parameters = {};
  // Staging slot on the host, where inputs go on to drives: kSaveInput, kReadInput: written;
  // kWriteInput, kLoadInput: read.
  std::optional<int32_t> staging = {};
  // Indices of earlier operations that must be done before this one begins, beside what its lane
  // waits for.
  std::vector<int32_t> after = {};
  Bytes bytes = 0;  // that cross the lane's link; 0 for compute
};

struct StepSchedule {
  std::vector<Op> ops;  // in the order in which they are issued
};

// The track of every operation.
std::vector<size_t> tracks_of(const StepSchedule& schedule);

// "op 17 fetch unit 3 slot 1", for findings and errors.
std::string describe_op(const StepSchedule& schedule, int32_t op);

// Of a run.
struct PassSchedules {
  StepSchedule train;
  StepSchedule first;    // with kForward: the train pass where no update is pending, as at first
  StepSchedule forward;  // evaluation, generation
  StepSchedule flush;    // all updates, of a step that ends here
  StepSchedule walk;     // every unit's state, outside of steps
  StepSchedule sweep_trained;  // the same of units that are trained
  StepSchedule commit;         // alone; where nothing commits, nothing
};

// The collectives of all passes in the order of issue, a line each: "train: gather unit 3". All
// ranks must have the same.
std::string describe_collectives(const PassSchedules& schedules);

struct ScheduleInputs {
  const ModelSpec* model = nullptr;  // must outlive the call
  Pass pass = Pass::kTrain;
  PassPlan executions;   // of plan_pass
  bool gathers = false;  // units are gathered from several ranks
  bool reduces = false;  // gradients are summed over several ranks
  // [Note: order of collectives] One collective at a time, gathers and sums together, in the order
  // of issue. A GPU may run the kernels of two collectives one after the other; ranks that take
  // them in different orders then wait for each other for ever.
  bool ordered_collectives = false;
  int32_t gradient_buffers = 2;
  int32_t input_slots = 0;  // > 0: inputs are offloaded to the host through so many; at least 2
  // > 0: offloaded inputs go on to drives, through so many slots on the host
  int32_t input_staging = 0;
  // > 0: the state is on drives, the parameters too, and passes through so many slots on the host
  int32_t state_slots = 0, parameter_slots = 0;
  bool commits = false;  // what updates write to the drives is made durable in their pass
  UpdateOverlap overlap = UpdateOverlap::kForward;
  // kBackward: > 0: units take turns in so many places for gradients in host memory; else each has
  // its own
  int32_t gradient_ring = 0;
  // Bytes of an operation on the unit, by unit; empty: not known.
  std::vector<Bytes> fetch_bytes = {}, gather_bytes = {}, reduce_bytes = {}, drain_bytes = {},
                     input_bytes = {}, staged_input_bytes = {}, update_bytes = {},
                     state_read_bytes = {}, state_written_bytes = {}, parameter_read_bytes = {};
  Bytes commit_bytes = 0;
};

// CheckFailure where the inputs contradict each other. Pass::kUpdates: an update of every unit that
// is trained, in order, and the commit; Pass::kSweep: of every unit.
StepSchedule build_schedule(const ScheduleInputs& inputs);

}  // namespace longshore
