// Reads and writes the parameter's value in a shard's state, whatever the state format: what
// loading, checkpoints and export go through. Pure functions over spans.
#pragma once

#include <cstdint>
#include <span>

#include "shard/shard_store.h"

namespace longshore {

// Sets elements [begin, begin + values.size()) of a segment: the master, exactly, and the bf16
// parameter that belongs to it. A frozen segment in bf16 compute has the bf16 parameter only.
void write_values(const StateSpans& state, int64_t begin, std::span<const float> values);

// Reads elements [begin, begin + values.size()): masters, or bf16 parameters that have none.
void read_values(const StateSpans& state, int64_t begin, std::span<float> values);

}  // namespace longshore
