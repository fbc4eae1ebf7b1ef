// CommBackend: what carries collectives between ranks. Plain value.
#pragma once

#include <cstdint>

namespace longshore {

// Auto: NCCL for buffers of a GPU, else Gloo.
enum class CommBackend : uint8_t { kAuto, kGloo, kNccl };

}  // namespace longshore
