// PayloadCounters: what one rank handed to a communicator, by kind of operation and unit, and how
// long it waited for it. Owned by the communicator; touched by the one thread that calls it.
//
// Payload is counted as it was handed over, whole segments: all_gather the gathered bytes,
// reduce_scatter and all_reduce the bytes of all elements in the wire's format, broadcast its
// bytes, scalars 8 bytes each, barrier 0. What the transport makes of it is its own matter.
#pragma once

#include <array>
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
inline constexpr std::array<CommKind, 6> kCommKinds = {
    CommKind::kAllGather, CommKind::kReduceScatter, CommKind::kAllReduce,
    CommKind::kScalars,   CommKind::kBroadcast,     CommKind::kBarrier};

// "all_gather", "reduce_scatter", ...
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
  // nullopt: operations that are on no unit.
  using Key = std::pair<CommKind, std::optional<UnitId>>;

  struct Totals {
    std::map<Key, Count> counts;
    Count all() const;
    Count of(CommKind kind) const;
    Count of(CommKind kind, std::optional<UnitId> unit) const;
  };

  void add(CommKind kind, std::optional<UnitId> unit, Bytes payload);
  void add_wait(CommKind kind, std::optional<UnitId> unit, double seconds);

  // Since the group was made.
  const Totals& total() const { return total_; }
  // Since the last take(), or since the group was made.
  Totals take();

 private:
  Totals total_;
  Totals taken_;  // what total_ was at the last take()
};

}  // namespace longshore
