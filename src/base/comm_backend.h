// CommBackend: the library that transports collectives between ranks. Plain value.
#pragma once

#include <cstdint>

namespace longshore {

// kAuto selects NCCL for GPU buffers and Gloo otherwise.
enum class CommBackend : uint8_t { kAuto, kGloo, kNccl };

}  // namespace longshore
