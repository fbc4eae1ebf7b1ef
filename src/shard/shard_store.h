// ShardStore: the home of one rank's shards, whatever the tier. The engine sees only this.
// Reading or writing a shard's bytes needs a lease; a lease's destructor ends the access. A unit's
// state may be leased once at a time, and not while its parameters are.
//
// Two lanes may call at once: one thread for `parameters` and `prefetch_parameters`, one for
// `state` and its leases' ends. No call waits for another lane's lease or I/O unless both are of
// the same unit. A store orders nothing: that a unit's update and its fetch come in the right
// order is the schedule's business, and a lease that contradicts another one is an error, not a
// wait. Parameters of a unit whose state lease has ended
// are the updated ones.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
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
  // The right to read and change a unit's state. Its destructor hands the state back for
  // write-back.
  class StateLease {
   public:
    virtual ~StateLease() = default;
    virtual StateSpans segment(Segment segment) = 0;
  };

  virtual ~ShardStore() = default;
  virtual const StateOptions& options() const = 0;
  virtual std::unique_ptr<ParameterLease> parameters(UnitId unit) = 0;
  // A lease of the unit's parameters will be asked for soon: the store may begin to read them.
  virtual void prefetch_parameters(UnitId) {}
  virtual std::unique_ptr<StateLease> state(UnitId unit) = 0;
  // Bytes that the store owns on the host; equal to the plan.
  virtual Bytes host_bytes() const = 0;
};

}  // namespace longshore
