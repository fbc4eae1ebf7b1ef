#include "model/document_attention.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/errors.h"
#include "device/gpu_tensors.h"
#include "model/gpu_attention.h"

namespace longshore {
namespace {

// Queries [q_begin, q_end) against keys [k_begin, q_end), as positions of the stream.
struct Piece {
  int64_t q_begin, q_end, k_begin;
  bool masked;  // needs a mask; otherwise the kernel's causal rule is enough
  int64_t queries() const { return q_end - q_begin; }
  int64_t keys() const { return q_end - k_begin; }
};

std::vector<Piece> pieces_of(int64_t begin, int64_t end, int64_t window) {
  if (window == 0 || window >= end - begin) return {{begin, end, begin, false}};
  std::vector<Piece> pieces;
  for (int64_t q = begin; q < end; q += kWindowQueries) {
    const int64_t q_end = std::min(q + kWindowQueries, end);
    const int64_t k_begin = std::max(begin, q - window + 1);
    // The kernel's causal rule requires that the first query and the first key are equal.
    pieces.push_back({q, q_end, k_begin, k_begin < q || q_end - begin > window});
  }
  return pieces;
}

// Returns 0 if key j is visible from query i (i - window < j <= i), else minus infinity.
std::optional<at::Tensor> band_mask(const Piece& piece, int64_t window, const at::Tensor& like) {
  if (!piece.masked) return std::nullopt;
  const auto indices = like.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor i = at::arange(piece.q_begin, piece.q_end, indices).unsqueeze(1);
  const at::Tensor j = at::arange(piece.k_begin, piece.q_end, indices).unsqueeze(0);
  at::Tensor hidden = j > i;
  hidden.logical_or_(j <= i - window);
  at::Tensor mask = at::zeros({piece.queries(), piece.keys()}, like.options().requires_grad(false));
  return mask.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

// The kernel takes [batch, heads, rows, head_dim] with strides. With grouped heads, the heads that
// share a key head become the kernel's heads and the key heads its batch, so that a stride of 0
// shares a key head without copies.
class HeadViews {
 public:
  explicit HeadViews(const AttentionShape& shape)
      : shape_(shape), group_(shape.heads / shape.kv_heads) {}

  int64_t group() const { return group_; }

  at::Tensor queries(const at::Tensor& x, int64_t begin, int64_t end) const {
    const at::Tensor rows = x.narrow(0, begin, end - begin);
    if (group_ == 1) return ungrouped(rows);
    return rows.view({end - begin, shape_.kv_heads, group_, shape_.head_dim}).permute({1, 2, 0, 3});
  }

  at::Tensor keys(const at::Tensor& x, int64_t begin, int64_t end) const {
    const at::Tensor rows = x.narrow(0, begin, end - begin);
    if (group_ == 1) return ungrouped(rows);
    return one_per_group(rows).unsqueeze(1).expand(
        {shape_.kv_heads, group_, end - begin, shape_.head_dim});
  }

  // Returns [batch, heads, 1] of [heads].
  at::Tensor sinks(const at::Tensor& values) const {
    return group_ == 1 ? values.view({1, shape_.heads, 1})
                       : values.view({shape_.kv_heads, group_, 1});
  }

  // Returns [kv_heads, rows, head_dim].
  at::Tensor one_per_group(const at::Tensor& rows) const {
    return rows.view({rows.size(0), shape_.kv_heads, shape_.head_dim}).permute({1, 0, 2});
  }

 private:
  at::Tensor ungrouped(const at::Tensor& rows) const {
    return rows.view({rows.size(0), shape_.heads, shape_.head_dim}).permute({1, 0, 2}).unsqueeze(0);
  }

  const AttentionShape& shape_;
  int64_t group_;
};

// Sums gradients of a document's keys (or values) over groups and pieces, in fp32 and in order.
class KeyGradient {
 public:
  // `target` holds the document's rows of the result. `direct` means one piece without groups.
  KeyGradient(const at::Tensor& target, const HeadViews& views, bool direct)
      : target_(target), views_(views), direct_(direct) {
    if (direct_) return;
    const bool in_place = target.scalar_type() == at::kFloat;
    sum_ =
        in_place ? target_.zero_() : at::zeros(target.sizes(), target.options().dtype(at::kFloat));
  }

  // The piece's rows begin at `row` of the document; `grad` is [batch, heads, rows, head_dim].
  void add(const at::Tensor& grad, int64_t row) {
    if (direct_) {
      views_.keys(target_, 0, target_.size(0)).copy_(grad);
      return;
    }
    at::Tensor rows = sum_.narrow(0, row, grad.size(2));
    if (views_.group() == 1) {
      views_.keys(rows, 0, rows.size(0)).add_(grad);
      return;
    }
    at::Tensor heads = views_.one_per_group(rows);
    for (int64_t member = 0; member < views_.group(); ++member) {
      heads.add_(grad.select(1, member));
    }
  }

  void finish() {
    if (!direct_ && target_.scalar_type() != at::kFloat) target_.copy_(sum_);
    sum_.reset();
  }

 private:
  at::Tensor target_;
  const HeadViews& views_;
  bool direct_;
  at::Tensor sum_;
};

// Multiplies to fp32. A GPU multiplies values in the compute dtype, as its fused kernels do. A CPU
// multiplies in fp32, because rounding scores to 16 bits would cost more than it saves.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType compute) {
  if (on_gpu(a) && compute != at::kFloat) {
    return at::bmm(a.to(compute), b.to(compute), at::kFloat);
  }
  return at::bmm(a.to(at::kFloat), b.to(at::kFloat));
}

// Queries [q_begin, q_end) of one document against keys [k_begin, q_end). The heads that share a
// key head are adjacent: [kv_heads, heads / kv_heads * queries, ...].
class CappedPiece {
 public:
  CappedPiece(const AttentionShape& shape, int64_t document, int64_t q_begin, int64_t q_end)
      : shape_(shape),
        group_(shape.heads / shape.kv_heads),
        q_begin_(q_begin),
        queries_(q_end - q_begin),
        k_begin_(shape.window == 0 ? document : std::max(document, q_begin - shape.window + 1)),
        keys_(q_end - k_begin_) {}

  // Returns [kv_heads, group, queries, head_dim] of x [T, heads * head_dim].
  at::Tensor heads(const at::Tensor& x) const {
    return x.narrow(0, q_begin_, queries_)
        .view({queries_, shape_.kv_heads, group_, shape_.head_dim})
        .permute({1, 2, 0, 3});
  }
  at::Tensor queries(const at::Tensor& x) const {
    return heads(x).reshape({shape_.kv_heads, group_ * queries_, shape_.head_dim});
  }
  // Returns [kv_heads, keys, head_dim] of x [T, kv_heads * head_dim].
  at::Tensor keys(const at::Tensor& x) const {
    return x.narrow(0, k_begin_, keys_)
        .view({keys_, shape_.kv_heads, shape_.head_dim})
        .permute({1, 0, 2});
  }
  void put_queries(const at::Tensor& target, const at::Tensor& values) const {
    const at::Tensor place = heads(target);
    place.copy_(values.view(place.sizes()));
  }

  // Returns tanh(score / cap) in fp32.
  at::Tensor bent(const at::Tensor& q, const at::Tensor& k) const {
    at::Tensor scores = product(queries(q), keys(k).transpose(1, 2), q.scalar_type());
    return scores.mul_(shape_.scale / shape_.cap).tanh_();
  }
  // Overwrites `scores`, which are cap * bent.
  at::Tensor probabilities(at::Tensor scores) const {
    const auto indices = at::TensorOptions(scores.device()).dtype(at::kLong);
    const at::Tensor i = at::arange(q_begin_, q_begin_ + queries_, indices).unsqueeze(1);
    const at::Tensor j = at::arange(k_begin_, k_begin_ + keys_, indices).unsqueeze(0);
    at::Tensor hidden = j > i;
    if (shape_.window > 0) hidden.logical_or_(j <= i - shape_.window);
    scores.view({shape_.kv_heads, group_, queries_, keys_})
        .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    return at::_softmax(scores, -1, false);
  }

 private:
  const AttentionShape& shape_;
  int64_t group_, q_begin_, queries_, k_begin_, keys_;
};

// Calls body for every piece of every document.
template <typename Body>
void for_capped_pieces(const AttentionShape& shape, const std::vector<int64_t>& starts, Body body) {
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    for (int64_t q = starts[i]; q < starts[i + 1]; q += kCappedQueries) {
      body(CappedPiece(shape, starts[i], q, std::min(q + kCappedQueries, starts[i + 1])));
    }
  }
}

// Calls body(place) for the sums of every piece: [batch, heads, rows] over `sums`, with the strides
// of those that the kernel returns.
template <typename Body>
void for_kept_sums(const at::Tensor& sums, const AttentionShape& shape,
                   const std::vector<int64_t>& starts, Body body) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t batch = group == 1 ? 1 : shape.kv_heads;
  const at::Tensor all = sums.view({-1});
  int64_t begin = 0;
  for (size_t document = 0; document + 1 < starts.size(); ++document) {
    for (const Piece& piece : pieces_of(starts[document], starts[document + 1], shape.window)) {
      const int64_t count = shape.heads * piece.queries();
      body(all.narrow(0, begin, count)
               .view({batch, piece.queries(), shape.heads / batch})
               .transpose(1, 2));
      begin += count;
    }
  }
}

}  // namespace

void keep_attention(const AttentionResult& result, const AttentionPlace& place,
                    const AttentionShape& shape, const std::vector<int64_t>& document_starts) {
  place.out.copy_(result.out);
  if (shape.cap != 0.0) return;
  if (on_gpu(place.out)) return keep_sums_gpu(result, place, shape, document_starts);
  size_t next = 0;
  for_kept_sums(place.sums, shape, document_starts,
                [&](const at::Tensor& sums) { sums.copy_(result.sums.at(next++)); });
}

AttentionResult kept_attention(const AttentionPlace& place, const AttentionShape& shape,
                               const std::vector<int64_t>& document_starts) {
  // The place's own tensor gets no graph.
  AttentionResult result{.out = place.out.detach(), .sums = {}};
  if (shape.cap != 0.0) return result;
  if (on_gpu(place.out)) {
    result.sums = kept_sums_gpu(place, shape, document_starts);
    return result;
  }
  for_kept_sums(place.sums, shape, document_starts,
                [&](const at::Tensor& sums) { result.sums.push_back(sums); });
  return result;
}

AttentionResult attend_at(const AttentionPlace& place, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const AttentionShape& shape,
                          const std::vector<int64_t>& document_starts, const at::Tensor& sinks) {
  if (place.filled) return kept_attention(place, shape, document_starts);
  AttentionResult result = attend_forward(q, k, v, shape, document_starts, sinks);
  if (place.out.defined()) keep_attention(result, place, shape, document_starts);
  return result;
}

AttentionResult attend_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionShape& shape,
                               const std::vector<int64_t>& document_starts,
                               const at::Tensor& sinks) {
  LONGSHORE_CHECK(!document_starts.empty() && document_starts.back() == q.size(0));
  LONGSHORE_CHECK(shape.cap == 0.0 || !sinks.defined()) << "capped scores and sinks";
  if (shape.cap != 0.0) return attend_forward_capped(q, k, v, shape, document_starts);
  if (on_gpu(q)) return attend_forward_gpu(q, k, v, shape, document_starts, sinks);
  const HeadViews views(shape);
  AttentionResult result;
  result.out = at::empty({q.size(0), shape.heads * shape.head_dim}, q.options());
  for (size_t document = 0; document + 1 < document_starts.size(); ++document) {
    for (const Piece& piece :
         pieces_of(document_starts[document], document_starts[document + 1], shape.window)) {
      const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
          views.queries(q, piece.q_begin, piece.q_end), views.keys(k, piece.k_begin, piece.q_end),
          views.keys(v, piece.k_begin, piece.q_end), 0.0, !piece.masked,
          band_mask(piece, shape.window, q), shape.scale);
      if (sinks.defined()) join_sinks(out, sums, views.sinks(sinks));
      views.queries(result.out, piece.q_begin, piece.q_end).copy_(out);
      result.sums.push_back(sums);
    }
  }
  return result;
}

std::vector<at::Tensor> attend_backward(const at::Tensor& grad, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionResult& result, const AttentionShape& shape,
                                        const std::vector<int64_t>& document_starts,
                                        const at::Tensor& sinks) {
  if (shape.cap != 0.0) return attend_backward_capped(grad, q, k, v, shape, document_starts);
  if (on_gpu(q)) return attend_backward_gpu(grad, q, k, v, result, shape, document_starts, sinks);
  const HeadViews views(shape);
  const auto options = q.options().requires_grad(false);
  const int64_t key_width = shape.kv_heads * shape.head_dim;
  at::Tensor grad_q = at::empty({q.size(0), shape.heads * shape.head_dim}, options);
  at::Tensor grad_k = at::empty({q.size(0), key_width}, options);
  at::Tensor grad_v = at::empty({q.size(0), key_width}, options);
  at::Tensor grad_sinks;
  if (sinks.defined()) grad_sinks = at::zeros({shape.heads}, options.dtype(at::kFloat));
  size_t next_sums = 0;
  for (size_t document = 0; document + 1 < document_starts.size(); ++document) {
    const int64_t begin = document_starts[document], end = document_starts[document + 1];
    const std::vector<Piece> pieces = pieces_of(begin, end, shape.window);
    const bool direct = pieces.size() == 1 && views.group() == 1;
    KeyGradient key_sum(grad_k.narrow(0, begin, end - begin), views, direct);
    KeyGradient value_sum(grad_v.narrow(0, begin, end - begin), views, direct);
    for (const Piece& piece : pieces) {
      auto [piece_q, piece_k, piece_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          views.queries(grad, piece.q_begin, piece.q_end),
          views.queries(q, piece.q_begin, piece.q_end), views.keys(k, piece.k_begin, piece.q_end),
          views.keys(v, piece.k_begin, piece.q_end),
          views.queries(result.out, piece.q_begin, piece.q_end), result.sums.at(next_sums), 0.0,
          !piece.masked, band_mask(piece, shape.window, q), shape.scale);
      if (sinks.defined()) {
        grad_sinks.add_(sink_gradient(views.queries(grad, piece.q_begin, piece.q_end),
                                      views.queries(result.out, piece.q_begin, piece.q_end),
                                      result.sums[next_sums], views.sinks(sinks))
                            .view({-1}));
      }
      ++next_sums;
      views.queries(grad_q, piece.q_begin, piece.q_end).copy_(piece_q);
      key_sum.add(piece_k, piece.k_begin - begin);
      value_sum.add(piece_v, piece.k_begin - begin);
    }
    key_sum.finish();
    value_sum.finish();
  }
  if (!sinks.defined()) return {grad_q, grad_k, grad_v};
  return {grad_q, grad_k, grad_v, grad_sinks.to(sinks.scalar_type())};
}

AttentionResult attend_forward_capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionShape& shape,
                                      const std::vector<int64_t>& document_starts) {
  AttentionResult result;
  result.out = at::empty({q.size(0), shape.heads * shape.head_dim}, q.options());
  for_capped_pieces(shape, document_starts, [&](const CappedPiece& piece) {
    const at::Tensor weights = piece.probabilities(piece.bent(q, k).mul_(shape.cap));
    piece.put_queries(result.out, product(weights, piece.keys(v), q.scalar_type()));
  });
  return result;
}

std::vector<at::Tensor> attend_backward_capped(const at::Tensor& grad, const at::Tensor& q,
                                               const at::Tensor& k, const at::Tensor& v,
                                               const AttentionShape& shape,
                                               const std::vector<int64_t>& document_starts) {
  const at::ScalarType compute = q.scalar_type();
  const auto options = q.options().requires_grad(false);
  const int64_t key_width = shape.kv_heads * shape.head_dim;
  at::Tensor grad_q = at::empty({q.size(0), shape.heads * shape.head_dim}, options);
  // These are summed over pieces in fp32, in order.
  at::Tensor grad_k = at::zeros({q.size(0), key_width}, options.dtype(at::kFloat));
  at::Tensor grad_v = at::zeros({q.size(0), key_width}, options.dtype(at::kFloat));
  for_capped_pieces(shape, document_starts, [&](const CappedPiece& piece) {
    const at::Tensor bent = piece.bent(q, k);
    const at::Tensor weights = piece.probabilities(bent * shape.cap);
    const at::Tensor upper = piece.queries(grad);
    piece.keys(grad_v).add_(product(weights.transpose(1, 2), upper, compute));
    at::Tensor grad_scores = at::_softmax_backward_data(
        product(upper, piece.keys(v).transpose(1, 2), compute), weights, -1, at::kFloat);
    // The derivative of cap * tanh(score / cap) by the score is 1 - tanh^2.
    at::tanh_backward_out(grad_scores, grad_scores, bent);
    grad_scores.mul_(shape.scale);
    piece.put_queries(grad_q, product(grad_scores, piece.keys(k), compute));
    piece.keys(grad_k).add_(product(grad_scores.transpose(1, 2), piece.queries(q), compute));
  });
  return {grad_q, grad_k.to(compute), grad_v.to(compute)};
}

void join_sinks(const at::Tensor& out, const at::Tensor& sums, const at::Tensor& sinks) {
  const at::Tensor joined = at::logaddexp(sums, sinks.to(at::kFloat));
  out.mul_((sums - joined).exp_().unsqueeze(-1));
  sums.copy_(joined);
}

at::Tensor sink_gradient(const at::Tensor& grad, const at::Tensor& out, const at::Tensor& sums,
                         const at::Tensor& sinks) {
  // The sink's value is 0, so its score's gradient is minus its weight times grad * out.
  at::Tensor share = (sinks.to(at::kFloat) - sums).exp_();
  share.mul_((grad.to(at::kFloat) * out).sum(-1));
  // A matrix product is used because its bits do not depend on the number of threads.
  const at::Tensor rows = share.reshape({-1, share.size(-1)});
  const at::Tensor ones = at::ones({rows.size(1), 1}, rows.options());
  return at::mm(rows, ones).neg_().view(sinks.sizes().slice(0, sinks.dim() - 1));
}

}  // namespace longshore
