// PayloadCounters: a rank's payload and waiting time in a communicator, by kind of operation and
// unit. Owned by the communicator; only the thread that calls it uses it.
//
// Payload counts whole segments: all_gather the gathered bytes, reduce_scatter and all_reduce the
// bytes of all elements in the wire dtype, broadcast its bytes, scalars 8 bytes each, barrier 0.
// The bytes that the transport really sends may differ.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/ids.h"

namespace longshore {

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

}  // namespace longshore
