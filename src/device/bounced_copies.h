// bounced_copies: copies between a GPU and host memory that cannot be registered with it. WSL2 and
// some virtual machines refuse to register more than a part of the host's memory. A copy then goes
// in pieces through two small registered buffers of its direction: the calling thread, a copy lane,
// fills or empties one while the GPU copies the other. Where not even these can be registered, the
// driver copies pageable memory through its own buffers, more slowly. The bytes are the same.
#pragma once

#include <memory>

#include "base/bytes.h"
#include "device/copy_engine.h"

namespace longshore {

// The buffers of both directions, two each. A larger piece would leave the processor's caches
// between the two copies.
inline constexpr Bytes kBouncePieceBytes = 8 * kMiB;
inline constexpr Bytes kBounceBuffers = 4;

// Returns the bytes of each of the buffers if all of them may take `most` bytes; 0: none.
Bytes bounce_piece_bytes(Bytes most);

// Returns an engine that makes copies of registered memory by `direct` and all others through its
// buffers, of at most `most` bytes in all. They are registered at the first copy that needs them.
// A copy through them is done on return, and one thread at a time makes one in each direction.
std::unique_ptr<CopyEngine> make_bounced_copies(std::unique_ptr<CopyEngine> direct, int device,
                                                Bytes most);

}  // namespace longshore
