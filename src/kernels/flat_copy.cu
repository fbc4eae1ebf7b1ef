#include "kernels/cuda_values.h"
#include "kernels/flat_copy.h"

namespace longshore::kernels {
namespace {

constexpr int kThreads = 256;
// This many blocks share one piece; for a piece of a few bytes all but one are idle.
constexpr unsigned kBlocksOfPiece = 64;

// Copies 16 bytes at a time if both ends are aligned. Writes zeros if `from` is null.
__device__ void copy_bytes(char* to, const char* from, int64_t bytes) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const bool wide = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 == 0;
  const int64_t wide_bytes = wide ? bytes / 16 * 16 : 0;
  for (int64_t i = thread; i < wide_bytes / 16; i += threads) {
    reinterpret_cast<uint4*>(to)[i] =
        from == nullptr ? make_uint4(0, 0, 0, 0) : reinterpret_cast<const uint4*>(from)[i];
  }
  for (int64_t i = wide_bytes + thread; i < bytes; i += threads) {
    to[i] = from == nullptr ? char{0} : from[i];
  }
}

__global__ void pack(const FlatPiece* __restrict__ pieces, char* flat) {
  const FlatPiece piece = pieces[blockIdx.y];
  copy_bytes(flat + piece.at, static_cast<const char*>(piece.parameter), piece.bytes);
  copy_bytes(flat + piece.at + piece.bytes, nullptr, piece.padded - piece.bytes);
}

__global__ void unpack(const FlatPiece* __restrict__ pieces, const char* flat) {
  const FlatPiece piece = pieces[blockIdx.y];
  copy_bytes(static_cast<char*>(piece.parameter), flat + piece.at, piece.bytes);
}

dim3 grid(int64_t count) {
  LONGSHORE_CHECK(count >= 0 && count <= 65535) << count << " pieces in one launch";
  return {kBlocksOfPiece, static_cast<unsigned>(count)};
}

}  // namespace

void pack_cuda(const FlatPiece* pieces, int64_t count, void* flat, CUstream_st* stream) {
  if (count == 0) return;
  launch(pack, grid(count), kThreads, stream, pieces, static_cast<char*>(flat));
  check_launch("pack");
}

void unpack_cuda(const FlatPiece* pieces, int64_t count, const void* flat, CUstream_st* stream) {
  if (count == 0) return;
  launch(unpack, grid(count), kThreads, stream, pieces, static_cast<const char*>(flat));
  check_launch("unpack");
}

}  // namespace longshore::kernels
