// ShardStore: the tier of one rank's shards, parameters and optimizer state. The engine and the run
// see only this. Reading or writing a shard's bytes needs a lease; a lease's destructor ends the
// access.
//
// In host memory a lease is all. Elsewhere bytes pass through numbered slots in host memory, and
// what moves them are operations of the schedule: read_state and read_parameters fill a slot,
// write_state empties one, each blocks its thread until that is done. Which slot, and when, is the
// schedule's decision; several operations may run at once, each with slots and units of its own.
// A store orders nothing: an operation on a slot that holds another unit, or a lease that
// contradicts another one, is an error, not a wait.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/ids.h"
#include "shard/agreement.h"
#include "shard/drive_traffic.h"
#include "shard/durable_step.h"
#include "shard/state_format.h"

namespace longshore {

// One segment of one unit's shard, as the optimizer sees it; spans that the format or the segment
// lacks are empty, the others have equal element counts.
struct StateSpans {
  std::span<float> master;
  std::span<uint16_t> high;
  std::span<uint16_t> low;
  MomentSpan exp_avg;
  MomentSpan exp_avg_sq;
};

class ShardStore {
 public:
  // The right to read a unit's parameter bytes in the compute dtype: the shard's segments end to
  // end. Must not outlive the store.
  class ParameterLease {
   public:
    virtual ~ParameterLease() = default;
    virtual std::span<const std::byte> bytes() const = 0;
  };
  // The right to read and change a unit's state; one at a time, and none of its parameters beside.
  class StateLease {
   public:
    virtual ~StateLease() = default;
    virtual StateSpans segment(Segment segment) = 0;
  };

  virtual ~ShardStore() = default;
  virtual const StateOptions& options() const = 0;
  // Bytes that the store owns on the host; equal to the plan.
  virtual Bytes host_bytes() const = 0;

  // ---- Whole accesses: where state or parameters pass through slots, the lease takes a free one,
  // waits for the reads, and its end for the writes of what was changed. In host memory passes use
  // them too.
  virtual std::unique_ptr<ParameterLease> parameters(UnitId unit) = 0;
  virtual std::unique_ptr<StateLease> state(UnitId unit) = 0;

  // ---- Operations of a schedule with slots. CheckFailure where the tier has none of the kind.
  // Brings the unit's state to the slot. CorruptStateError where it is not what was written.
  virtual void read_state(UnitId unit, int32_t slot);
  // The state in the slot, where read_state brought it.
  virtual std::unique_ptr<StateLease> state_in(UnitId unit, int32_t slot);
  // Takes what was changed to where it is kept, and frees the slot. Of a tier that commits, the
  // commit reports what failed.
  virtual void write_state(UnitId unit, int32_t slot);
  // Brings the unit's parameters to the slot, as the device reads them.
  virtual void read_parameters(UnitId unit, int32_t slot);
  // Brings parameters to the slot from state in a slot: updated just now, not yet written.
  virtual void pass_parameters(UnitId unit, int32_t state_slot, int32_t slot);
  // The parameters in the slot; the lease's end frees it.
  virtual std::unique_ptr<ParameterLease> parameters_in(UnitId unit, int32_t slot);

  // ---- What outlives the process. A tier that ends with it keeps these: they do nothing.
  // Comes before every access. What the run goes on from; without it the state is all zeros until
  // it is loaded. Collective; `random` differs between starts. CheckpointError.
  virtual std::optional<DurablePoint> start(Agreement& agreement, uint64_t random);
  // Whether commit() has anything to do.
  virtual bool commits() const { return false; }
  // Makes the state that was written since the last commit durable, on all ranks or on none, or
  // throws what a write failed with. Collective. A skipped step updates nothing and is recorded all
  // the same. May run beside reads of parameters, not beside anything that moves state.
  virtual void commit(const DurableStep& record, Agreement& agreement);
  // The newest point of this or an earlier process.
  virtual std::optional<DurablePoint> committed() const { return std::nullopt; }

  // What operations and commits moved since the start.
  virtual DriveTraffic traffic() const { return {}; }
};

}  // namespace longshore
