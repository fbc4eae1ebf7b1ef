// StepSchedule: the operations of one pass, the lane that each runs on and what it waits for. A
// value: `build_schedule` makes it from the pass plan before the first step, `validate_schedule`
// proves it, `StepExecutor` runs it, `print_schedule` shows it. Pure data, no device, any thread.
//
// A lane runs its operations one after the other, in the order of the schedule; lanes run side by
// side. Every wait between lanes is written down in `after`.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "offload/schedule/pass_plan.h"

namespace longshore {

enum class Lane : uint8_t { kUpdate, kH2D, kGather, kCompute, kReduce, kD2H };
inline constexpr size_t kLaneCount = 6;
std::string_view name_of(Lane lane);

enum class OpKind : uint8_t {
  kUpdate,     // kUpdate: applies the unit's pending update at home
  kFetch,      // kH2D: the unit's parameters from home to its slot; with a gather, the rank's part
  kGather,     // kGather: completes the slot from the other ranks' parts
  kLoadInput,  // kH2D: the unit's kept inputs back from the host
  kForward,    // kCompute: all micro-batches through the unit
  kBackward,   // kCompute: gradients of the unit; of the last unit with its forward and the loss
  kSaveInput,  // kD2H: the unit's kept inputs to the host
  kReduce,     // kReduce: sums the unit's gradient over ranks
  kDrain,      // kD2H: casts the rank's part of the gradient, sums its squares, copies it home
};
std::string_view name_of(OpKind kind);
Lane lane_of(OpKind kind);

// One operation. What a kind does not use is empty.
struct Op {
  OpKind kind = OpKind::kForward;
  UnitId unit = {};
  // kFetch, kGather: the slot that is written; kForward, kBackward: the slots that are leased, the
  // unit's own first.
  std::vector<Placed> slots = {};
  // kBackward, kReduce, kDrain: the gradient buffer. Empty where the unit's gradient has a place of
  // its own (it lends a parameter), and where nothing of the unit is trained.
  std::optional<int32_t> gradient = {};
  // kDrain: written; kUpdate: read: the place in the ring of gradients at home, where there is one.
  std::optional<int32_t> home = {};
  // Input slots, where inputs are offloaded to the host (the first unit has no input).
  std::optional<int32_t> input =
      {};  // kForward, kBackward: read; kSaveInput: read; kLoadInput: written
  std::optional<int32_t> output = {};  // kForward: where the next unit's input is written
  // Indices of earlier operations of other lanes that must be done before this one begins.
  std::vector<int32_t> after = {};
  Bytes bytes = 0;  // that cross the lane's link; 0 for compute
};

struct StepSchedule {
  std::vector<Op> ops;  // in the order in which they are issued
};

// Of a run.
struct PassSchedules {
  StepSchedule train;
  StepSchedule forward;  // evaluation, generation
  StepSchedule flush;    // all updates, of a step that ends here
};

// When updates are applied; `optimizer.overlap` of the run file.
enum class UpdateOverlap : uint8_t {
  kNone,      // after the step: not in this schedule
  kForward,   // the last step's update of a unit, just before the unit is fetched
  kBackward,  // this step's update of a unit, once its gradient is home; no clipping
};

struct ScheduleInputs {
  const ModelSpec* model = nullptr;  // must outlive the call
  Pass pass = Pass::kTrain;
  PassPlan visits;       // of plan_pass
  bool gathers = false;  // units are gathered from several ranks
  bool reduces = false;  // gradients are summed over several ranks
  int32_t gradient_buffers = 2;
  int32_t input_slots = 0;  // > 0: inputs are offloaded to the host through so many; at least 2
  UpdateOverlap overlap = UpdateOverlap::kForward;
  // kBackward: > 0: units take turns in so many places for gradients at home; else each has its own
  int32_t gradient_ring = 0;
  // Bytes of an operation on the unit, by unit; empty: not known.
  std::vector<Bytes> fetch_bytes = {}, gather_bytes = {}, reduce_bytes = {}, drain_bytes = {},
                     input_bytes = {}, update_bytes = {};
};

// CheckFailure where the inputs contradict each other.
StepSchedule build_schedule(const ScheduleInputs& inputs);

// An update of every unit that is trained, in order, and nothing else.
StepSchedule build_flush(const ModelSpec& model);

}  // namespace longshore
