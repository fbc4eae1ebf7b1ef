#include "kernels/flat_copy.h"

#include <cstring>

#include "base/errors.h"

namespace longshore::kernels {

void pack_cpu(std::span<const FlatPiece> pieces, void* flat) {
  for (const FlatPiece& piece : pieces) {
    LONGSHORE_CHECK(piece.bytes >= 0 && piece.padded >= piece.bytes) << piece.bytes;
    auto* const to = static_cast<std::byte*>(flat) + piece.at;
    std::memcpy(to, piece.parameter, static_cast<size_t>(piece.bytes));
    std::memset(to + piece.bytes, 0, static_cast<size_t>(piece.padded - piece.bytes));
  }
}

void unpack_cpu(std::span<const FlatPiece> pieces, const void* flat) {
  for (const FlatPiece& piece : pieces) {
    std::memcpy(piece.parameter, static_cast<const std::byte*>(flat) + piece.at,
                static_cast<size_t>(piece.bytes));
  }
}

}  // namespace longshore::kernels
