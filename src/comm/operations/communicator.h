// Communicator: the collectives of one group of ranks. Owned by a World; one thread at a time calls
// it: the gather's or the reduction's lane, for totals the engine's thread. All ranks start
// the same operations in the same order. An operation starts at once and is finished when its
// Completion has been waited for; until then its buffers belong to it. Implementations: Gloo (CPU),
// NCCL (GPU), solo (one rank).
//
// Sums: Gloo and solo add in the order of ranks, in fp32 (scalars in double), so a sum is the same
// bits on every run; NCCL's order is its own, and repeats at a given rank count.
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

// What an operation is for: in errors, counters and traces.
struct OpLabel {
  std::string what;            // "parameters", "gradients", "norm"
  std::optional<UnitId> unit;  // of operations on a unit
};

// One operation under way. Move-only. Its destructor waits too, and then drops an error.
class Completion {
 public:
  class State {
   public:
    virtual ~State() = default;
    // Blocks until the operation is finished; CommError when it failed or the deadline passed.
    virtual void wait() = 0;
  };

  Completion() = default;  // finished
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
  virtual int32_t index() const = 0;  // of this rank in the group

  // In place. Every segment's size is a multiple of size(); the rank's part of it, at
  // index() * bytes / size(), is given, and at the end all ranks' parts are there.
  [[nodiscard]] virtual Completion all_gather(Segments segments, const OpLabel& label) = 0;
  // In place. At the end the rank's part of every segment is the sum over ranks; the other parts
  // are unspecified. `wire` is what travels: kF32, or kBF16 (values are rounded to it before, and
  // added in fp32). `scratch` has reduce_scratch_bytes of all elements.
  [[nodiscard]] virtual Completion reduce_scatter(FloatSegments segments, DType wire,
                                                  std::span<std::byte> scratch,
                                                  const OpLabel& label) = 0;
  // In place: the sums over ranks, on all ranks the same bits. Any sizes.
  [[nodiscard]] virtual Completion all_reduce(FloatSegments segments, DType wire,
                                              std::span<std::byte> scratch,
                                              const OpLabel& label) = 0;
  // A few scalars, added in double, in the order of ranks.
  [[nodiscard]] virtual Completion all_reduce(std::span<double> values, const OpLabel& label) = 0;
  [[nodiscard]] virtual Completion broadcast(std::span<std::byte> bytes, int32_t root,
                                             const OpLabel& label) = 0;
  [[nodiscard]] virtual Completion barrier(const OpLabel& label) = 0;

  // What this rank handed to operations since the group was made, by operation and unit.
  virtual const PayloadCounters& counters() const = 0;
  // For take().
  virtual PayloadCounters& counters() = 0;
};

// Scratch of reduce_scatter and all_reduce over `elements` (all segments together) in a group of
// `size` ranks; 0 for one rank.
Bytes reduce_scratch_bytes(int64_t elements, DType wire, int32_t size);

}  // namespace longshore
