// Pack and unpack: copies many parameters into or out of a flat parameter in one launch, where one
// copy for each would cost a launch each. Packing clears the padding behind every piece, so that a
// flat parameter's bytes, and sums over it, do not depend on what memory held before. Pure
// functions; nothing overlaps.
#pragma once

#include <cstdint>
#include <span>

struct CUstream_st;

namespace longshore::kernels {

// `bytes` of one parameter at `at` bytes of the flat one, followed by padding up to `padded` bytes
// in all.
struct FlatPiece {
  void* parameter = nullptr;
  int64_t at = 0;
  int64_t bytes = 0;
  int64_t padded = 0;
};

void pack_cpu(std::span<const FlatPiece> pieces, void* flat);
void unpack_cpu(std::span<const FlatPiece> pieces, const void* flat);

// `pieces` is a table in the GPU's memory, of `count` entries; its parameters are the GPU's.
void pack_cuda(const FlatPiece* pieces, int64_t count, void* flat, CUstream_st* stream);
void unpack_cuda(const FlatPiece* pieces, int64_t count, const void* flat, CUstream_st* stream);

}  // namespace longshore::kernels
