// ShardStore: the tier that keeps one rank's shards (parameters and optimizer state). The engine
// and the run use only these interfaces. Access to a shard's bytes needs a lease, whose destructor
// ends the access.
//
// In host memory a lease is all that is needed. On drives, bytes pass through numbered slots in
// host memory (SlottedStore), and operations of the schedule move them: read_state and
// read_parameters fill a slot, write_state empties one, and each blocks its thread until it is
// done, or until the slot's lease can wait for the rest. The schedule decides which slot is used
// when; several operations may run at once, each with its own slots and units. A store does not
// order anything: an operation on a slot with another unit, or a lease that conflicts with another
// one, is an error and does not wait. A tier that makes steps durable is a DurableStore too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "shard/durability.h"
#include "shard/slots.h"
#include "shard/state_format.h"

namespace longshore {

// One segment of one unit's shard, as the optimizer sees it. Spans that the format or the segment
// lacks are empty; the others have equal element counts. The frozen segment has only its bytes.
struct StateSpans {
  std::span<float> master;
  std::span<uint16_t> high;
  std::span<uint16_t> low;
  std::vector<MomentSpan> regions = {};  // in the order of the update rule's list
  std::span<std::byte> frozen = {};      // FrozenPiece counts in them; empty: held elsewhere
};
// Makes a segment's spans from the bytes of its regions.
StateSpans state_spans(const StateOptions& options, Segment segment,
                       const std::function<std::span<std::byte>(Region region)>& bytes_of);

class ShardStore {
 public:
  // The right to read a unit's parameter bytes as the device reads them: the shard's segments end
  // to end. It must not outlive the store.
  class ParameterLease {
   public:
    virtual ~ParameterLease() = default;
    virtual std::span<const std::byte> bytes() const = 0;
  };
  // The right to read and change a unit's state. It excludes all other leases of the unit.
  class StateLease {
   public:
    virtual ~StateLease() = default;
    virtual StateSpans segment(Segment segment) = 0;
  };

  virtual ~ShardStore() = default;
  virtual const StateOptions& options() const = 0;
  // Returns the bytes that the store owns on the host; equal to the plan.
  virtual Bytes host_bytes() const = 0;

  // ---- Synchronous access. In a tier with slots the lease takes a free slot and waits for the
  // reads; its destructor waits for the writes of changed data. In host memory passes use it too.
  virtual std::unique_ptr<ParameterLease> parameters(UnitId unit) = 0;
  virtual std::unique_ptr<StateLease> state(UnitId unit) = 0;

  // Returns the bytes that moved between memory and drives since the start.
  virtual DriveTraffic traffic() const { return {}; }
};

// SlottedStore: a tier whose state, and perhaps parameters, pass through slots. The operations of a
// schedule call it.
class SlottedStore {
 public:
  virtual ~SlottedStore() = default;
  // Reads the unit's state to the slot. Throws CorruptStateError if its checksum is wrong.
  virtual void read_state(UnitId unit, StateSlot slot) = 0;
  // Leases the state that read_state brought to the slot.
  virtual std::unique_ptr<ShardStore::StateLease> state_in(UnitId unit, StateSlot slot) = 0;
  // Writes changed state from the slot to the drives and frees the slot. In a tier that commits,
  // the commit reports write failures.
  virtual void write_state(UnitId unit, StateSlot slot) = 0;
  // Reads the unit's parameters to the slot, as the device reads them.
  virtual void read_parameters(UnitId unit, ParameterSlot slot) = 0;
  // Fills `to` from a state slot that was updated and is not yet written.
  virtual void pass_parameters(UnitId unit, StateSlot from, ParameterSlot to) = 0;
  // Leases the parameters in the slot; the lease's destructor frees the slot.
  virtual std::unique_ptr<ShardStore::ParameterLease> parameters_in(UnitId unit,
                                                                    ParameterSlot slot) = 0;
};

// DurableStore: a tier that makes steps durable and resumes from the last one.
class DurableStore {
 public:
  virtual ~DurableStore() = default;
  // Comes before every access. Returns the point that the run resumes from; without one the state
  // is all zeros until it is loaded. Collective; `random` differs between starts. CheckpointError.
  virtual std::optional<DurablePoint> start(Agreement& agreement, uint64_t random) = 0;
  // Makes the state written since the last commit durable, on all ranks or on none, or throws the
  // error of a failed write. Collective. A skipped step updates nothing but is recorded. It may run
  // beside reads of parameters, but not beside operations that move state.
  virtual void commit(const DurableStep& record, Agreement& agreement) = 0;
  // Returns the newest committed point of this or an earlier process.
  virtual std::optional<DurablePoint> committed() const = 0;
  // Returns the path of a file of this rank that was moved, removed or replaced, so that commits to
  // it end with the process; empty if there is none.
  virtual std::string lost_file() const = 0;
};

// StateSweep: access to every unit's state outside of steps, to load, restore or save it. The owner
// of the tier makes it (Engine::state_sweep), reads units ahead and writes them behind.

struct StateSweep {
  using Visitor = std::function<void(UnitId unit, ShardStore::StateLease& state)>;

  StateOptions options;
  // Calls `visit` for every unit in order, one at a time, on a separate thread. Returns when all
  // changes are in the tier. Throws the first failure.
  std::function<void(const Visitor& visit)> each;
  // Does the same for every unit with trainable parameters.
  std::function<void(const Visitor& visit)> each_trained;
};

// StateValues: reads and writes values of trained parameters in a shard's state, whatever the state
// format. Loading, checkpoints and export use it. Pure functions over spans.

// Sets elements [begin, begin + values.size()) of a segment: the exact master and its bf16
// parameter.
void write_values(const StateSpans& state, int64_t begin, std::span<const float> values);

// Reads the masters of elements [begin, begin + values.size()).
void read_values(const StateSpans& state, int64_t begin, std::span<float> values);

}  // namespace longshore
