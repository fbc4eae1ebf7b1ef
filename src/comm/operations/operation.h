// Operation: what one collective does, the bytes that it moves on each link, and the rounds of a
// reduction. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>

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

// Throws CheckFailure if a reduction's wire is not fp32 or bf16, or its scratch is too small or
// misaligned.
void check_reduction(const Collective& collective, int32_t size);

// Throws ConfigError for a wire dtype that NCCL does not add in, and CheckFailure for memory
// outside of a GPU's arena. NCCL does not check pointers, and a kernel that touches host memory
// makes the GPU unusable for the process.
void check_for_nccl(const Collective& collective, const std::string& group);

// Reduce rounds: a reduction travels in rounds, which bounds its scratch for any unit.

// The elements of one rank's part per round: 1 MiB of fp32 from each other rank. The next round
// travels while this one is added.
inline constexpr int64_t kRoundElements = 256 * 1024;

}  // namespace longshore
