// TokenHits: counts the trained positions of an evaluation whose target has the highest score. Of
// equal scores the one of the lowest id is the highest, as torch.argmax on the CPU decides. The
// component that runs the units owns one per micro-batch; compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "base/value_sums.h"

namespace longshore {

// The sum over micro-batches and ranks. A trained position counts once, whatever its weight is. A
// step of training has the entropies of the predicted distributions too; its head gets all of it
// from the kernel of the loss.
struct HitCount {
  int64_t hits = 0;
  int64_t compared = 0;    // trained positions; 0: the model or the loss counts none
  int64_t measured = 0;    // trained positions that have an entropy
  double entropies = 0.0;  // theirs, in nats

  auto values() { return std::tie(hits, compared, measured, entropies); }
  HitCount& operator+=(const HitCount& other) { return add_values(*this, other); }
  // Returns the share of compared positions that are hits; nullopt if none was compared.
  std::optional<double> accuracy() const {
    if (compared == 0) return std::nullopt;
    return static_cast<double>(hits) / static_cast<double>(compared);
  }
};

class TokenHits {
 public:
  // Compares the scores of the whole vocabulary, [N, vocabulary], with the targets, int64 [N].
  void compare(const at::Tensor& scores, const at::Tensor& targets);
  // Notes the scores of a piece of the vocabulary, fp32 [N, tokens], whose first token is `first`,
  // at `rows`, int64 [N], of a micro-batch of `positions`. Pieces come in the order of their
  // tokens.
  void note_piece(const at::Tensor& scores, const at::Tensor& rows, int64_t positions,
                  int64_t first);
  // Compares the highest scores of all pieces at `rows` with the targets of all positions.
  void compare_pieces(const at::Tensor& rows, const at::Tensor& targets);
  // HOST WAIT, on a GPU: the count is the evaluation's result.
  HitCount count() const;

 private:
  void add(const at::Tensor& equal);

  at::Tensor best_;        // fp32 [positions]: the highest score of the pieces so far
  at::Tensor best_token_;  // int64 [positions]
  at::Tensor hits_;        // int64, on the device; undefined: none yet
  int64_t compared_ = 0;
};

}  // namespace longshore
