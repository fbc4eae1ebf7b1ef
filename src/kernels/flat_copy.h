// Pack and unpack: copy many parameters into or out of a flat parameter in one launch instead of
// one launch each. Packing zeroes the padding behind every piece, so the bytes of a flat parameter,
// and sums over it, do not depend on earlier contents. These are pure functions; nothing overlaps.
#pragma once

#include <cstdint>
#include <span>

struct CUstream_st;

namespace longshore::kernels {

// One parameter has `bytes` bytes at offset `at` of the flat one; with padding it takes `padded`
// bytes.
struct FlatPiece {
  void* parameter = nullptr;
  int64_t at = 0;
  int64_t bytes = 0;
  int64_t padded = 0;
};

void pack_cpu(std::span<const FlatPiece> pieces, void* flat);
void unpack_cpu(std::span<const FlatPiece> pieces, const void* flat);

// `pieces` is a table of `count` entries in GPU memory and refers to GPU memory.
void pack_cuda(const FlatPiece* pieces, int64_t count, void* flat, CUstream_st* stream);
void unpack_cuda(const FlatPiece* pieces, int64_t count, const void* flat, CUstream_st* stream);

}  // namespace longshore::kernels
