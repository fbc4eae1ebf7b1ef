// Communicator: the collectives of one group of ranks. The caller that got it from a World owns it;
// one thread at a time calls it: the gather's or the reduction's lane, or the engine's thread for
// totals. All ranks start the same operations in the same order. An operation starts at once and
// ends when its Completion has been waited for; until then it owns its buffers. Implementations:
// Gloo (CPU), NCCL (GPU), solo (one rank).
//
// Gloo and solo add in the order of ranks, in fp32 (scalars in double), so a sum has the same bits
// in every run. NCCL has its own order, which repeats for a given rank count.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "comm/operations/payload_counters.h"

namespace longshore {

// The purpose of an operation, for errors, counters and traces.
struct OpLabel {
  std::string what;            // "parameters", "gradients", "norm"
  std::optional<UnitId> unit;  // only for operations on a unit
};

// One operation in flight. Move-only. The destructor waits too, and drops the error.
class Completion {
 public:
  class State {
   public:
    virtual ~State() = default;
    // Blocks until the operation is finished. Throws CommError when it failed or timed out.
    virtual void wait() = 0;
  };

  Completion() = default;  // already finished
  explicit Completion(std::unique_ptr<State> state);
  Completion(Completion&&) noexcept = default;
  Completion& operator=(Completion&&) noexcept;
  ~Completion();

  void wait();

 private:
  std::unique_ptr<State> state_;  // null once finished
};

class Communicator {
 public:
  using Segments = std::vector<std::span<std::byte>>;
  using FloatSegments = std::vector<std::span<float>>;

  virtual ~Communicator() = default;

  virtual const std::string& name() const = 0;  // "world", "shards", "replicas"
  virtual int32_t size() const = 0;
  virtual int32_t index() const = 0;  // this rank's index in the group

  // Gathers in place. Every segment's size is a multiple of size(). Before, the rank's part, at
  // index() * bytes / size(), is valid; after, all parts are.
  [[nodiscard]] virtual Completion all_gather(Segments segments, const OpLabel& label) = 0;
  // Reduces in place. After it the rank's part of every segment is the sum over ranks; other parts
  // are unspecified. `wire` is the dtype that travels: kF32, or kBF16 (values are rounded first and
  // added in fp32). `scratch` has reduce_scratch_bytes of all elements.
  [[nodiscard]] virtual Completion reduce_scatter(FloatSegments segments, DType wire,
                                                  std::span<std::byte> scratch,
                                                  const OpLabel& label) = 0;
  // Sums over ranks in place; all ranks get the same bits. Segments may have any size.
  [[nodiscard]] virtual Completion all_reduce(FloatSegments segments, DType wire,
                                              std::span<std::byte> scratch,
                                              const OpLabel& label) = 0;
  // Adds a few scalars in double, in the order of ranks.
  [[nodiscard]] virtual Completion all_reduce(std::span<double> values, const OpLabel& label) = 0;
  [[nodiscard]] virtual Completion broadcast(std::span<std::byte> bytes, int32_t root,
                                             const OpLabel& label) = 0;
  [[nodiscard]] virtual Completion barrier(const OpLabel& label) = 0;

  // Returns the payload of this rank's operations since the group was made, by kind and unit.
  virtual const PayloadCounters& counters() const = 0;
  // The mutable form serves PayloadCounters::take().
  virtual PayloadCounters& counters() = 0;
};

// Returns the scratch that reduce_scatter and all_reduce need for `elements` (all segments
// together) in a group of `size` ranks; 0 for one rank.
Bytes reduce_scratch_bytes(int64_t elements, DType wire, int32_t size);

}  // namespace longshore
