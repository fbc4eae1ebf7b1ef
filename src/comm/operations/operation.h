// Operation: what one collective does, the bytes that it moves on each link, and the rounds of a
// reduction. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/operations/communicator.h"

namespace longshore {

struct Operation {
  CommKind kind = CommKind::kBarrier;
  OpLabel label;
  std::string group;     // the group's name
  int64_t sequence = 0;  // in the group, from 1
  Bytes bytes = 0;
  std::string detail = {};  // "BF16", "from 2"; may be empty

  // Returns the text, equal on all ranks of the group: "all_gather #41 of parameters, unit 3 (4096
  // bytes) in group shards".
  std::string text() const;
  // Returns the hash of the text ([Note: tags] of group_communicator.h).
  uint32_t tag() const;
};

// OpBytes: the checks and sizes that all communicators share. Pure functions.

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

// Reduce rounds: a reduction travels in rounds, which bounds its scratch for any unit.

// The elements of one rank's part per round: 1 MiB of fp32 from each other rank. The next round
// travels while this one is added.
inline constexpr int64_t kRoundElements = 256 * 1024;

}  // namespace longshore
