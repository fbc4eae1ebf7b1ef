#include "shard/shard_store.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/number_formats.h"

namespace longshore {
namespace {

void check_range(const StateSpans& state, int64_t begin, size_t elements) {
  const size_t held = std::max(state.master.size(), state.high.size());
  LONGSHORE_CHECK(begin >= 0 && static_cast<size_t>(begin) <= held &&
                  elements <= held - static_cast<size_t>(begin))
      << begin << " + " << elements << " of " << held;
}

template <typename T>
std::span<T> part(std::span<T> whole, int64_t begin, size_t elements) {
  return whole.empty() ? whole : whole.subspan(static_cast<size_t>(begin), elements);
}

}  // namespace

StateSpans state_spans(const StateOptions& options, Segment segment,
                       const std::function<std::span<std::byte>(Region region)>& bytes_of) {
  StateSpans state;
  if (segment == Segment::kFrozen) {
    state.frozen = bytes_of(frozen_region(options));
  } else {
    state.master = as_span<float>(bytes_of(Region::kMaster));
    state.high = as_span<uint16_t>(bytes_of(Region::kHigh));
    state.low = as_span<uint16_t>(bytes_of(Region::kLow));
  }
  for (size_t i = 0; i < options.regions.size(); ++i) {
    state.regions.push_back({moment_format(options, segment, i), bytes_of({Region::kValues, i}),
                             as_span<float>(bytes_of({Region::kScales, i}))});
  }
  return state;
}

void write_values(const StateSpans& state, int64_t begin, std::span<const float> values) {
  check_range(state, begin, values.size());
  std::ranges::copy(values.first(state.master.empty() ? 0 : values.size()),
                    part(state.master, begin, values.size()).begin());
  const std::span<uint16_t> high = part(state.high, begin, values.size());
  for (size_t i = 0; i < high.size(); ++i) high[i] = master_high(values[i]);
  const std::span<uint16_t> low = part(state.low, begin, values.size());
  for (size_t i = 0; i < low.size(); ++i) low[i] = master_low(values[i]);
}

void read_values(const StateSpans& state, int64_t begin, std::span<float> values) {
  check_range(state, begin, values.size());
  if (!state.master.empty()) {
    std::ranges::copy(part(state.master, begin, values.size()), values.begin());
    return;
  }
  const std::span<const uint16_t> high = part(state.high, begin, values.size());
  const std::span<const uint16_t> low = part(state.low, begin, values.size());
  LONGSHORE_CHECK(low.size() == high.size()) << "no exact master";
  for (size_t i = 0; i < values.size(); ++i) values[i] = join_master(high[i], low[i]);
}

}  // namespace longshore
