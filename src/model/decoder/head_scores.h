// HeadScores: what a head makes of the scores of trained positions, as a whole or piece by piece:
// cross entropy, or the divergence from a teacher. The units of a head own one; immutable. Compute
// thread only.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "device/gpu_tensors.h"
#include "model/decoder/decoder_units.h"
#include "model/families/arch_spec.h"
#include "model/units/unit.h"

namespace longshore {

inline constexpr int64_t kNotTrained = -100;

// Returns int64 [N]. HOST WAIT, on a GPU: the number decides how many chunks are issued. It takes
// about 20 us per micro-batch and piece of the head, next to products of milliseconds.
at::Tensor trained_positions(const at::Tensor& targets);

// Indices into the carry of a head in pieces: sums of the pieces so far, and the hidden state.
inline constexpr size_t kLog = 0, kTarget = 1, kHidden = 2;

// The number of positions whose logits exist at one time. It depends only on device and vocabulary,
// so bits do not depend on memory. The CPU takes at most 2^24 logits (64 MiB in fp32), but at least
// 64 positions, because every chunk reads the head's matrix and adds to its gradient. On a GPU a
// chunk's cost is memory traffic: the matrix (2 bytes, twice) and its gradient (4 bytes, read and
// written) are 12 bytes per element for 6 operations per position. 1,024 positions give 512
// operations per byte, above the balance of an H200 (206) and an H100 (295); the CPU's 130 for
// Llama 3 would give 65.
constexpr int64_t head_chunk_positions(int64_t vocabulary, DeviceKind device) {
  if (device == DeviceKind::kCuda) return 1024;
  const int64_t fitting = (int64_t{1} << 24) / vocabulary;
  return fitting < 64 ? 64 : (fitting > 1024 ? 1024 : fitting);
}

// HeadPlace: a chunk of a micro-batch's trained positions for a piece of the head.
struct HeadPlace {
  const MicroBatch& batch;
  const TableRows& table;
  at::Tensor rows;    // int64 [N]: the positions
  int64_t begin = 0;  // the first one's number among the trained positions
};

// Calls work(place) for each chunk of trained positions of a piece of the head.
template <typename Work>
void for_each_chunk(const TableRows& table, const MicroBatch& batch, const Work& work) {
  const int64_t chunk = head_chunk_positions(
      table.count, on_gpu(batch.targets) ? DeviceKind::kCuda : DeviceKind::kCpu);
  const at::Tensor positions = trained_positions(batch.targets);
  const int64_t count = positions.size(0);
  for (int64_t begin = 0; begin < count; begin += chunk) {
    work(
        HeadPlace{batch, table, positions.narrow(0, begin, std::min(chunk, count - begin)), begin});
  }
}

// HeadChunk: the scores of a piece at a place. Bytes of logits, and in fp32 of scores, their
// exponentials and, with a cap, the tanh.
struct HeadChunk {
  at::Tensor x;       // [N, hidden]
  at::Tensor scores;  // fp32 [N, count]
  at::Tensor bent;    // LogitRule::bend(), if scores are capped
  // Cross entropy alone has the following.
  at::Tensor inside;         // bool [N, 1]: the target is in the piece
  at::Tensor targets;        // int64 [N, 1]: the target's row in the piece
  at::Tensor before, after;  // fp32 [N, 1]: log-sum-exp before and after the piece
};

// HeadScale: the factors of the losses of trained positions in what gradients are of, and whether
// an earlier pass has computed these losses and their statistics.
struct HeadScale {
  double scale = 1.0;
  at::Tensor factors = {};  // fp32 by trained position; undefined: all are 1
  bool scored = false;      // statistics are not computed again
};

// HeadPart: the losses of a whole head's chunk.
struct HeadPart {
  at::Tensor losses;     // fp32 [N]
  at::Tensor by_logits;  // the gradient; undefined if it is not wanted
  // fp32 [N, 2]: whether the target has the highest score, and the entropy; undefined: unknown.
  at::Tensor statistics = {};
};

class HeadScores {
 public:
  virtual ~HeadScores() = default;
  // These are added to the traits of a unit: text of its signature, the bytes of a token's scores
  // that are needed on a GPU at one position, and the width of the teacher's columns.
  virtual std::string signature() const { return {}; }
  virtual Bytes gpu_bytes() const { return 0; }
  virtual int64_t teacher_tokens() const { return 0; }

  // Computes a chunk of a whole head, from the trained position number `begin` on. Overwrites the
  // logits. With `scale` the gradient is wanted. Adds the loss's own sums to `sums`.
  virtual HeadPart whole(const MicroBatch& batch, int64_t begin, const at::Tensor& targets,
                         at::Tensor logits, const HeadScale* scale, LossSum& sums) const = 0;

  // Returns the carry before any piece, without the hidden state.
  virtual Carry before(int64_t positions, const at::TensorOptions& fp32) const = 0;
  // Completes a chunk of a piece whose carry before it is this one.
  virtual void complete(HeadChunk&, const HeadPlace&, const Carry&) const {}
  // Adds the chunk's scores to the carry.
  virtual void add(HeadChunk& chunk, const HeadPlace& place, Carry& carry) const = 0;
  // Given the carry before the piece and the gradient of the one after it, sets the gradient of the
  // former at the place and returns that of the scores, which it may overwrite.
  virtual at::Tensor by_scores(HeadChunk& chunk, const HeadPlace& place, const Carry& before,
                               const Carry& grad_out, Carry& grad) const = 0;
  // Computes the loss. `pieces` returns the carry after all of them. With `grad_out`, its gradient
  // of scale * loss is set there.
  virtual LossUnit::Result finish(const MicroBatch& batch, const TableRows& table,
                                  const std::function<Carry()>& pieces, double scale,
                                  Carry* grad_out) const = 0;
};

// Returns cross entropy, or the divergence of ArchSpec::distill.
std::unique_ptr<const HeadScores> make_head_scores(const ArchSpec& arch);

// Returns whether the batch's loss is made from log-probabilities that are computed first.
bool scores_first(const MicroBatch& batch);

// Applies the batch's loss to the positions' losses, fp32 [trained]; returns what Loss::apply does.
at::Tensor apply_loss(const MicroBatch& batch, const at::Tensor& trained, const at::Tensor& losses,
                      LossUnit::Result& result);

}  // namespace longshore
