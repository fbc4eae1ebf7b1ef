// OpBytes: the checks and sizes that all communicators share. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/operations/communicator.h"

namespace longshore {

Bytes total_bytes(const Communicator::Segments& segments);
int64_t total_elements(const Communicator::FloatSegments& segments);

// Both throw CheckFailure if a segment does not divide into `size` equal parts.
void check_parts(const Communicator::Segments& segments, int32_t size);
void check_parts(const Communicator::FloatSegments& segments, int32_t size);
// Throws CheckFailure if the wire is not fp32 or bf16, or the scratch is too small or misaligned.
void check_reduction(int64_t elements, DType wire, std::span<std::byte> scratch, int32_t size);

// Throws CheckFailure for memory outside of a GPU's arena. NCCL does not check pointers, and a
// kernel that touches host memory makes the GPU unusable for the process.
void check_gpu_memory(std::span<const std::byte> bytes, CommKind kind, const OpLabel& label,
                      const std::string& group);
template <typename Element>
void check_gpu_memory(const std::vector<std::span<Element>>& segments, CommKind kind,
                      const OpLabel& label, const std::string& group) {
  for (const auto& segment : segments) {
    check_gpu_memory(std::as_bytes(segment), kind, label, group);
  }
}
// Throws ConfigError for a wire dtype that NCCL does not add in.
void check_nccl_wire(DType wire);

}  // namespace longshore
