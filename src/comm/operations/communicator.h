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
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "base/ids.h"

namespace longshore {

// PayloadCounters: a rank's payload and waiting time in a communicator, by kind of operation and
// unit. Owned by the communicator; only the thread that calls it uses it.
//
// Payload counts whole segments: all_gather the gathered bytes, reduce_scatter and all_reduce the
// bytes of all elements in the wire dtype, broadcast its bytes, scalars 8 bytes each, barrier 0.
// The bytes that the transport really sends may differ.

enum class CommKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kScalars,
  kBroadcast,
  kBarrier,
};

// Returns "all_gather", "reduce_scatter" and so on.
std::string_view name_of(CommKind kind);

class PayloadCounters {
 public:
  struct Count {
    int64_t operations = 0;
    Bytes payload = 0;
    double waited_seconds = 0.0;  // in Completion::wait()
    Count& operator+=(const Count& other);
    Count& operator-=(const Count& other);
  };
  // A key without a unit counts the operations on no unit.
  using Key = std::pair<CommKind, std::optional<UnitId>>;

  struct Totals {
    std::map<Key, Count> counts;
    Count all() const;
    Count of(CommKind kind) const;
    Count of(CommKind kind, std::optional<UnitId> unit) const;
  };

  void add(CommKind kind, std::optional<UnitId> unit, Bytes payload);
  void add_wait(CommKind kind, std::optional<UnitId> unit, double seconds);

  // Returns the totals since the group was made.
  const Totals& total() const { return total_; }
  // Returns the totals since the last take(), or since the group was made.
  Totals take();

 private:
  Totals total_;
  Totals taken_;  // total_ at the last take()
};

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

// A collective and the caller's buffers, as bytes.
struct Collective {
  CommKind kind = CommKind::kBarrier;
  OpLabel label = {};
  std::vector<std::span<std::byte>> segments = {};
  // Only reductions use these two, as Communicator::reduce_scatter describes.
  DType wire = DType::kF32;
  std::span<std::byte> scratch = {};
  int32_t root = 0;  // of a broadcast

  // Returns the segments as the values that the caller handed over: floats, or doubles of scalars.
  template <typename Value>
  std::vector<std::span<Value>> as() const {
    std::vector<std::span<Value>> values;
    for (const auto& segment : segments) {
      values.push_back({reinterpret_cast<Value*>(segment.data()), segment.size() / sizeof(Value)});
    }
    return values;
  }
  bool reduces() const { return kind == CommKind::kReduceScatter || kind == CommKind::kAllReduce; }
  Bytes payload() const;
};

class Communicator {
 public:
  using Segments = std::vector<std::span<std::byte>>;
  using FloatSegments = std::vector<std::span<float>>;

  Communicator(std::string name, int32_t size, int32_t index)
      : name_(std::move(name)), size_(size), index_(index) {}
  virtual ~Communicator() = default;

  const std::string& name() const { return name_; }  // "world", "shards", "replicas"
  int32_t size() const { return size_; }
  int32_t index() const { return index_; }  // this rank's index in the group

  // Gathers in place. Every segment's size is a multiple of size(). Before, the rank's part, at
  // index() * bytes / size(), is valid; after, all parts are.
  [[nodiscard]] Completion all_gather(Segments segments, const OpLabel& label);
  // Reduces in place. After it the rank's part of every segment is the sum over ranks; other parts
  // are unspecified. `wire` is the dtype that travels: kF32, or kBF16 (values are rounded first and
  // added in fp32). `scratch` has reduce_scratch_bytes of all elements.
  [[nodiscard]] Completion reduce_scatter(const FloatSegments& segments, DType wire,
                                          std::span<std::byte> scratch, const OpLabel& label);
  // Sums over ranks in place; all ranks get the same bits. Segments may have any size.
  [[nodiscard]] Completion all_reduce(const FloatSegments& segments, DType wire,
                                      std::span<std::byte> scratch, const OpLabel& label);
  // Adds a few scalars in double, in the order of ranks.
  [[nodiscard]] Completion all_reduce(std::span<double> values, const OpLabel& label);
  [[nodiscard]] Completion broadcast(std::span<std::byte> bytes, int32_t root,
                                     const OpLabel& label);
  [[nodiscard]] Completion barrier(const OpLabel& label);

  // Return the payload of this rank's operations since the group was made, by kind and unit. The
  // mutable form serves PayloadCounters::take().
  const PayloadCounters& counters() const { return counters_; }
  PayloadCounters& counters() { return counters_; }

 protected:
  // Starts an operation whose segments have been checked to divide among the ranks.
  virtual Completion start(const Collective& collective) = 0;

 private:
  Completion count(const Collective& collective);

  std::string name_;
  int32_t size_, index_;
  PayloadCounters counters_;
};

// Returns the scratch that reduce_scatter and all_reduce need for `elements` (all segments
// together) in a group of `size` ranks; 0 for one rank.
Bytes reduce_scratch_bytes(int64_t elements, DType wire, int32_t size);

// SoloCommunicator: the collectives of a group of one rank, for example in a run on one GPU. Every
// operation completes at once; nothing travels, so nothing is rounded to a wire dtype. Its counters
// count the bytes handed over, as those of Gloo and NCCL do. The caller that got it from a World
// (the object that makes a run's groups) owns it and calls it from one thread.

class SoloCommunicator : public Communicator {
 public:
  explicit SoloCommunicator(std::string name) : Communicator(std::move(name), 1, 0) {}

 protected:
  Completion start(const Collective& collective) override;
};

}  // namespace longshore
