// StateValues: reads and writes parameter values in a shard's state, whatever the state format.
// Loading, checkpoints and export use it. Pure functions over spans.
#pragma once

#include <cstdint>
#include <span>

#include "shard/shard_store.h"

namespace longshore {

// Sets elements [begin, begin + values.size()) of a segment: the exact master and its bf16
// parameter. A frozen segment in bf16 compute has only the bf16 parameter.
void write_values(const StateSpans& state, int64_t begin, std::span<const float> values);

// Reads elements [begin, begin + values.size()): masters, or bf16 parameters without a master.
void read_values(const StateSpans& state, int64_t begin, std::span<float> values);

}  // namespace longshore
