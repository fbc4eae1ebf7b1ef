// The format of the update rule's regions in a state file. It equals the state's own format, so
// resuming with the same format is bit-exact and the file is no larger. Pure functions over bytes.
//
//   F32    fp32 moments, in the parameter's shape
//   BF16   bf16 moments, in the parameter's shape
//   U8     8-bit moments: for each block of 128 elements, counted from the tensor's first, its fp32
//          unit followed by its codes (defined in shard/moments.h)
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hf/tensor_dtype.h"
#include "shard/shard_store.h"
#include "trainer/checkpoint/checkpoint_manifest.h"

namespace longshore {

TensorDType stored_dtype(MomentFormat format);
std::optional<MomentFormat> moment_format_of(TensorDType dtype);

// Returns the bytes of a tensor's first `elements` elements. For kInt8 they end at a block boundary
// or at the tensor's end.
Bytes stored_bytes(MomentFormat format, int64_t elements);

// Appends elements from `begin` on in the file's format. A kInt8 `begin` is a block boundary.
void append_stored(const MomentSpan& from, int64_t begin, int64_t elements,
                   std::vector<std::byte>& to);

// StoredMoments: a view of a range of a file's moments that starts at a block boundary.
class StoredMoments {
 public:
  StoredMoments(MomentFormat format, int64_t elements, std::span<const std::byte> bytes);

  // Copies elements [from, from + elements) of the range to `to` from `begin` on: bit for bit if
  // the formats are equal and blocks align, otherwise rounded once. Returns false and writes
  // nothing if `begin` is inside a block.
  bool copy_to(Moment which, int64_t from, int64_t elements, const MomentSpan& to,
               int64_t begin) const;
  void read(Moment which, int64_t from, std::span<float> values) const;

 private:
  MomentSpan span() const;

  MomentFormat format_;
  int64_t elements_;
  std::vector<std::byte> values_;
  std::vector<float> units_;
};

// Returns the warning for a state format that cannot hold the checkpoint's moments exactly, or "".
std::string describe_rounding(const CheckpointManifest& from, StateFormat to);

}  // namespace longshore
