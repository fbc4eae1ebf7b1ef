#include "model/ops/document_chunks.h"

#include <algorithm>
#include <bit>

#include "model/ops/row_ops.h"

namespace longshore {
namespace {

// A block of a few ranges of rows is written by as many copies. Rows by index need more kernels
// than that: repeatable bits make LibTorch sort the indices.
constexpr size_t kMostCopies = 8;

int64_t chunk_size(int64_t positions) {
  if (2 * positions > kScanChunk) return kScanChunk;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(positions)));
}

}  // namespace

bool ChunkBlock::reads_states() const {
  return !std::ranges::all_of(chunks, &Chunk::first);
}

bool ChunkBlock::passes_state() const {
  return !std::ranges::all_of(chunks, &Chunk::last);
}

std::vector<ChunkBlock> make_blocks(const std::vector<int64_t>& document_starts) {
  std::vector<ChunkBlock> blocks;
  for (int64_t size = 1; size <= kScanChunk; size *= 2) {
    const auto most = static_cast<size_t>(std::max<int64_t>(1, kScanPositions / size));
    bool open = false;
    for (size_t d = 0; d + 1 < document_starts.size(); ++d) {
      const int64_t begin = document_starts[d], end = document_starts[d + 1];
      if (chunk_size(end - begin) != size) continue;
      for (int64_t at = begin; at < end; at += size) {
        if (!open || blocks.back().chunks.size() == most) blocks.push_back({size, {}});
        open = true;
        blocks.back().chunks.push_back({.begin = at,
                                        .count = std::min(size, end - at),
                                        .first = at == begin,
                                        .last = at + size >= end});
      }
    }
  }
  return blocks;
}

std::vector<int64_t> worst_chunk_lengths(int64_t longest) {
  std::vector<int64_t> lengths = {longest};
  const auto add = [&](int64_t length) {
    if (length < lengths.back()) lengths.push_back(length);
  };
  // One position more than whole chunks needs a state more; half a chunk and one is padded most.
  add((longest - 1) / kScanChunk * kScanChunk + 1);
  add(kScanChunk + 1);
  add(kScanChunk / 2 + 1);
  add(1);
  return lengths;
}

BlockRows::BlockRows(const ChunkBlock& block, const at::Device& device)
    : chunks_(std::ssize(block.chunks)), size_(block.size) {
  std::vector<int64_t> from, places, targets;
  for (const Chunk& chunk : block.chunks) {
    if (!ranges_.empty() && ranges_.back().begin + ranges_.back().count == chunk.begin) {
      ranges_.back().count += chunk.count;
    } else {
      ranges_.push_back({chunk.begin, chunk.count});
    }
    for (int64_t i = 0; i < size_; ++i) {
      const bool inside = i < chunk.count;
      if (inside) {
        places.push_back(std::ssize(from));
        targets.push_back(chunk.begin + i);
      }
      from.push_back(inside ? chunk.begin + i : -1);
    }
  }
  const at::Tensor rows = at::tensor(from, at::kLong);
  if (places.size() < from.size()) {
    const at::Tensor padding = (rows < 0).view({chunks_, 1, size_, 1});
    padding_ = padding.to(device, /*non_blocking=*/true);
    places_ = at::tensor(places, at::kLong).to(device, /*non_blocking=*/true);
  }
  rows_ = rows.clamp_min(0).to(device, /*non_blocking=*/true);
  if (ranges_.size() > kMostCopies) {
    targets_ = at::tensor(targets, at::kLong).to(device, /*non_blocking=*/true);
  }
}

at::Tensor BlockRows::gather(const at::Tensor& x, int64_t heads) const {
  at::Tensor values = x.index_select(0, rows_).to(at::kFloat);
  values = values.view({chunks_, size_, heads, -1}).transpose(1, 2).contiguous();
  return padding_.defined() ? values.masked_fill_(padding_, 0.0) : values;
}

void BlockRows::scatter(const at::Tensor& to, at::ArrayRef<at::Tensor> parts) const {
  std::vector<at::Tensor> columns;
  for (const at::Tensor& part : parts) {
    columns.push_back(part.transpose(1, 2).reshape({chunks_ * size_, -1}).to(to.scalar_type()));
  }
  at::Tensor rows = columns.size() == 1 ? columns[0] : at::cat(columns, 1);
  if (places_.defined()) rows = rows.index_select(0, places_);
  if (targets_.defined()) {
    copy_rows(to, targets_, rows);
    return;
  }
  int64_t next = 0;
  for (const Range& range : ranges_) {
    to.narrow(0, range.begin, range.count).copy_(rows.narrow(0, next, range.count));
    next += range.count;
  }
}

at::Tensor turned(const at::Tensor& x) {
  return x.transpose(-1, -2);
}

}  // namespace longshore
