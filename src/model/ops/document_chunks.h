// document_chunks: the chunks in which a recurrence over positions runs as products of small
// matrices. A document is cut into chunks of kScanChunk positions; one of at most half a chunk is a
// single chunk of the next power of two. No chunk crosses a document's border. Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace longshore {

inline constexpr int64_t kScanChunk = 64;
inline constexpr int64_t kScanPositions = 512;  // the most of a block, whose chunks run together

// Consecutive positions of one document.
struct Chunk {
  int64_t begin = 0, count = 0;
  bool first = true, last = true;  // of its document
};

// Chunks that are computed together, all padded to `size` positions.
struct ChunkBlock {
  int64_t size = 0;
  std::vector<Chunk> chunks;

  // Returns whether a chunk begins with the state of an earlier one.
  bool reads_states() const;
  // Returns whether a chunk's state is read by a later one.
  bool passes_state() const;
};

// Returns the blocks in the order of forward: those of short documents first. A document's chunks
// follow each other.
std::vector<ChunkBlock> make_blocks(const std::vector<int64_t>& document_starts);

// Returns how many chunks of a document of `positions` read the state of an earlier one.
constexpr int64_t passed_states(int64_t positions) {
  return positions > 0 ? (positions - 1) / kScanChunk : 0;
}

// Returns document lengths with the most states and with the most padding for their positions
// (UnitTraits::documents).
std::vector<int64_t> worst_chunk_lengths(int64_t longest);

// Moves rows of [T, width] tensors to the chunks of a block and back.
class BlockRows {
 public:
  BlockRows(const ChunkBlock& block, const at::Device& device);
  // Returns x [T, heads * width] as fp32 [chunks, heads, size, width]; padding is zero.
  at::Tensor gather(const at::Tensor& x, int64_t heads) const;
  // Writes parts [chunks, heads, size, width], side by side and without the padding, to the rows of
  // contiguous `to`. One call for all columns: see copy_rows.
  void scatter(const at::Tensor& to, at::ArrayRef<at::Tensor> parts) const;

 private:
  // Rows without a gap in `to`.
  struct Range {
    int64_t begin = 0, count = 0;
  };

  int64_t chunks_, size_;
  std::vector<Range> ranges_;
  // `places_` are the positions that are no padding; `targets_` are their rows if the ranges are
  // too many to copy them one by one.
  at::Tensor rows_, padding_, places_, targets_;
};

at::Tensor turned(const at::Tensor& x);

}  // namespace longshore
