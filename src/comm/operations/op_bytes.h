// What the operations of all communicators check and count alike. Pure functions.
#pragma once

#include <cstdint>

#include "comm/operations/communicator.h"

namespace longshore {

Bytes total_bytes(const Communicator::Segments& segments);
int64_t total_elements(const Communicator::FloatSegments& segments);

// CheckFailure where a segment does not divide into `size` equal parts.
void check_parts(const Communicator::Segments& segments, int32_t size);
void check_parts(const Communicator::FloatSegments& segments, int32_t size);
// CheckFailure for a wire other than fp32 and bf16, or scratch that is too small or not aligned.
void check_reduction(int64_t elements, DType wire, std::span<std::byte> scratch, int32_t size);

}  // namespace longshore
