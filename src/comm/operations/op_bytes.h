// What the operations of all communicators check and count alike. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/operations/communicator.h"

namespace longshore {

Bytes total_bytes(const Communicator::Segments& segments);
int64_t total_elements(const Communicator::FloatSegments& segments);

// CheckFailure where a segment does not divide into `size` equal parts.
void check_parts(const Communicator::Segments& segments, int32_t size);
void check_parts(const Communicator::FloatSegments& segments, int32_t size);
// CheckFailure for a wire other than fp32 and bf16, or scratch that is too small or not aligned.
void check_reduction(int64_t elements, DType wire, std::span<std::byte> scratch, int32_t size);

// What NCCL would take and should not. CheckFailure for memory outside a GPU's arena: NCCL looks at
// no pointer, and a kernel that touches the host's memory ends the process's use of the GPU.
void check_gpu_memory(std::span<const std::byte> bytes, CommKind kind, const OpLabel& label,
                      const std::string& group);
template <typename Element>
void check_gpu_memory(const std::vector<std::span<Element>>& segments, CommKind kind,
                      const OpLabel& label, const std::string& group) {
  for (const auto& segment : segments) {
    check_gpu_memory(std::as_bytes(segment), kind, label, group);
  }
}
// ConfigError for a wire that NCCL does not add in.
void check_nccl_wire(DType wire);

}  // namespace longshore
