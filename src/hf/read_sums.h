// ReadSums: sums of the bytes that were read of each tensor of a weight file, by any thread and in
// any pieces (place_sum of base/hash.h). A byte counts once: for bytes that are summed already a
// read costs only a look-up. So the values that a run uses are identified without a second pass
// over the files. The SafetensorsFile owns it; any thread calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"

namespace longshore {

// Bytes [begin, end) of a tensor and their place_sum.
struct SummedRange {
  Bytes begin = 0;
  Bytes end = 0;
  uint64_t sum = 0;
  bool operator==(const SummedRange&) const = default;
};

class ReadSums {
 public:
  explicit ReadSums(size_t tensors) : tensors_(tensors) {}

  // Adds bytes that were read from byte `begin` of a tensor on.
  void take(size_t tensor, Bytes begin, std::span<const std::byte> bytes);
  // Returns what was read of a tensor, in order; adjoining reads are one range.
  std::vector<SummedRange> ranges(size_t tensor) const;
  // Forgets all sums, for example after a change of the file; later reads count again.
  void restart();

 private:
  struct Rest {
    Bytes end = 0;
    uint64_t sum = 0;
  };
  using Ranges = std::map<Bytes, Rest>;  // by the first byte; they neither overlap nor adjoin

  // Returns the first part of [begin, end) that is not summed.
  static std::optional<std::pair<Bytes, Bytes>> first_gap(const Ranges& ranges, Bytes begin,
                                                          Bytes end);
  static void insert(Ranges& ranges, Bytes begin, Rest rest);

  mutable Mutex mutex_;
  std::vector<Ranges> tensors_ LONGSHORE_GUARDED_BY(mutex_);
};

}  // namespace longshore
