// How a checkpoint's state file stores moments: as the state does, so that the same format resumes
// to the bit and a file is no larger than the state. Pure functions over bytes.
//
//   F32    fp32 moments, in the parameter's shape
//   BF16   bf16 moments, in the parameter's shape
//   U8     8-bit moments: for each block of 128 elements, counted from the tensor's first, its fp32
//          unit and then its codes (shard/moments.h says what they mean)
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

// Bytes of the first `elements` of a tensor; of kInt8, up to a whole block or to the end.
Bytes stored_bytes(MomentFormat format, int64_t elements);

// Which moment a kind is; not for masters.
Moment moment_of(StateKind kind);

// Appends elements [begin, begin + elements) as a file has them; kInt8: begins at a block.
void append_stored(const MomentSpan& from, int64_t begin, int64_t elements,
                   std::vector<std::byte>& to);

// A stretch of a file's moments that begins at a block, opened to be read.
class StoredMoments {
 public:
  StoredMoments(MomentFormat format, int64_t elements, std::span<const std::byte> bytes);

  // Elements [from, from + elements) of the stretch, to `begin` on in `to`: bit for bit where the
  // formats are equal, else rounded once. Where blocks would be cut: false, and nothing is written.
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

// What a run says when its state format cannot hold the checkpoint's moments exactly; else empty.
std::string describe_rounding(const CheckpointManifest& from, StateFormat to);

}  // namespace longshore
