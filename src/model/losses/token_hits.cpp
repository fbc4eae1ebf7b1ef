#include "model/losses/token_hits.h"

#include <limits>
#include <tuple>

#include "model/ops/row_ops.h"

namespace longshore {

void TokenHits::add(const at::Tensor& equal) {
  compared_ += equal.size(0);
  const at::Tensor sum = equal.sum(at::kLong);
  hits_ = hits_.defined() ? hits_ + sum : sum;
}

void TokenHits::compare(const at::Tensor& scores, const at::Tensor& targets) {
  add(at::argmax(scores, 1) == targets);
}

void TokenHits::note_piece(const at::Tensor& scores, const at::Tensor& rows, int64_t positions,
                           int64_t first) {
  if (!best_.defined()) {
    best_ = at::full({positions}, -std::numeric_limits<float>::infinity(), scores.options());
    best_token_ = at::zeros({positions}, rows.options());
  }
  const auto [value, token] = at::max(scores, 1);
  const at::Tensor before = best_.index_select(0, rows);
  // An equal score of an earlier piece has the lower token.
  const at::Tensor higher = value > before;
  copy_rows(best_, rows, at::where(higher, value, before));
  copy_rows(best_token_, rows, at::where(higher, token + first, best_token_.index_select(0, rows)));
}

void TokenHits::compare_pieces(const at::Tensor& rows, const at::Tensor& targets) {
  // Without trained positions no piece has noted anything.
  if (best_token_.defined()) {
    add(best_token_.index_select(0, rows) == targets.index_select(0, rows));
  }
}

HitCount TokenHits::count() const {
  return {.hits = hits_.defined() ? hits_.item<int64_t>() : 0, .compared = compared_};
}

}  // namespace longshore
