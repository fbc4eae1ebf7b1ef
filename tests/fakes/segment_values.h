// Functions that write and read values of any segment of a shard, for tests whose frozen parameters
// are all numbers of the compute dtype. Pure functions over spans.
#pragma once

#include <span>

#include "shard/flat_layout.h"
#include "shard/shard_store.h"

namespace longshore::fakes {

// Returns the values of a rank's shard of a segment, padding included.
inline int64_t values_in_shard(const FlatLayout& layout, Segment segment) {
  return layout.shard_bytes(segment) / width_of(layout.compute());
}

// Both begin at the `begin`-th value of the shard.
inline void write_segment(const StateSpans& state, DType compute, int64_t begin,
                          std::span<const float> values) {
  if (state.frozen.empty()) return write_values(state, begin, values);
  const auto width = static_cast<size_t>(width_of(compute));
  store_numbers(storage_of(compute), values,
                state.frozen.subspan(static_cast<size_t>(begin) * width, values.size() * width));
}
inline void read_segment(const StateSpans& state, DType compute, int64_t begin,
                         std::span<float> values) {
  if (state.frozen.empty()) return read_values(state, begin, values);
  const auto width = static_cast<size_t>(width_of(compute));
  load_numbers(storage_of(compute),
               state.frozen.subspan(static_cast<size_t>(begin) * width, values.size() * width),
               values);
}

}  // namespace longshore::fakes
