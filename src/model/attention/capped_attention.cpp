// Attention on a GPU by plain operations, where no kernel does it: with score = cap * tanh(score /
// cap) before the softmax (Gemma 2), and in place of the memory-efficient kernel on GPUs that are
// newer than it. It runs over pieces of queries with the keys they can see, and backward computes a
// piece's scores again. Scratch grows in line with the longest document.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>

#include "device/gpu_tensors.h"
#include "model/attention/gpu_attention.h"

namespace longshore {
namespace {

// Queries of one piece; it has at most heads times this times the longest document scores.
constexpr int64_t kCappedQueries = 128;

// Multiplies values in the compute dtype, as the fused kernels do, and sums in fp32. A CPU in the
// GPU's place has no such product.
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

// Queries [begin, end) of a document [batch, rows, group, head_dim], as the memory-efficient kernel
// takes it, against keys [k_begin, end) of its batch: the heads of a group share them.
class PlainPiece {
 public:
  PlainPiece(const AttentionShape& shape, const at::Tensor& q, int64_t begin, int64_t end)
      : scale_(shape.scale),
        window_(shape.window),
        batch_(q.size(0)),
        group_(q.size(2)),
        begin_(begin),
        queries_(end - begin),
        k_begin_(shape.window == 0 ? 0 : std::max<int64_t>(0, begin - shape.window + 1)),
        keys_(end - k_begin_) {}

  // Returns the piece's queries of x as [batch, group * queries, head_dim].
  at::Tensor queries(const at::Tensor& x) const {
    return place(x).reshape({batch_, group_ * queries_, x.size(3)});
  }
  void put(const at::Tensor& target, const at::Tensor& values) const {
    const at::Tensor to = place(target);
    to.copy_(values.view(to.sizes()));
  }
  // Returns the piece's keys of x [batch, rows, head_dim].
  at::Tensor keys(const at::Tensor& x) const { return x.narrow(1, k_begin_, keys_); }
  // Returns the piece's part of sums [batch, group, rows].
  at::Tensor of_sums(const at::Tensor& sums) const { return sums.narrow(2, begin_, queries_); }

  // Returns the scores in fp32, [batch, group, queries, keys]; those of hidden keys are -infinity.
  at::Tensor scores(const at::Tensor& q, const at::Tensor& k) const {
    const auto indices = at::TensorOptions(q.device()).dtype(at::kLong);
    const at::Tensor i = at::arange(begin_, begin_ + queries_, indices).unsqueeze(1);
    const at::Tensor j = at::arange(k_begin_, k_begin_ + keys_, indices).unsqueeze(0);
    at::Tensor hidden = j > i;
    if (window_ > 0) hidden.logical_or_(j <= i - window_);
    return product(queries(q), keys(k).transpose(1, 2), q.scalar_type())
        .mul_(scale_)
        .view({batch_, group_, queries_, keys_})
        .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }
  at::Tensor matrix(const at::Tensor& x) const {
    return x.view({batch_, group_ * queries_, x.size(3)});
  }

 private:
  at::Tensor place(const at::Tensor& x) const {
    return x.narrow(1, begin_, queries_).permute({0, 2, 1, 3});
  }

  double scale_;
  int64_t window_, batch_, group_, begin_, queries_, k_begin_, keys_;
};

template <typename Body>
void for_plain_pieces(const AttentionShape& shape, const at::Tensor& q, Body body) {
  for (int64_t begin = 0; begin < q.size(1); begin += kCappedQueries) {
    body(PlainPiece(shape, q, begin, std::min(begin + kCappedQueries, q.size(1))));
  }
}

}  // namespace

std::array<at::Tensor, 2> attend_forward_plain(const at::Tensor& q, const at::Tensor& k,
                                               const at::Tensor& v, const AttentionShape& shape) {
  const auto options = q.options().requires_grad(false);
  at::Tensor out = at::empty(q.sizes(), options);
  at::Tensor sums = at::empty({q.size(0), q.size(2), q.size(1)}, options.dtype(at::kFloat));
  for_plain_pieces(shape, q, [&](const PlainPiece& piece) {
    const at::Tensor scores = piece.scores(q, k);
    piece.of_sums(sums).copy_(at::logsumexp(scores, {-1}));
    const at::Tensor weights = piece.matrix(at::_softmax(scores, -1, false));
    piece.put(out, product(weights, piece.keys(v), q.scalar_type()));
  });
  return {out, sums};
}

std::array<at::Tensor, 3> attend_backward_plain(const at::Tensor& grad, const at::Tensor& q,
                                                const at::Tensor& k, const at::Tensor& v,
                                                const at::Tensor& out, const at::Tensor& sums,
                                                const AttentionShape& shape) {
  const at::ScalarType compute = q.scalar_type();
  const auto options = q.options().requires_grad(false);
  at::Tensor grad_q = at::empty(q.sizes(), options);
  // These are summed over pieces in fp32, in order.
  at::Tensor grad_k = at::zeros(k.sizes(), options.dtype(at::kFloat));
  at::Tensor grad_v = at::zeros(k.sizes(), options.dtype(at::kFloat));
  for_plain_pieces(shape, q, [&](const PlainPiece& piece) {
    const at::Tensor upper = piece.queries(grad);
    const at::Tensor weights =
        piece.matrix(piece.scores(q, k).sub_(piece.of_sums(sums).unsqueeze(3)).exp_());
    piece.keys(grad_v).add_(product(weights.transpose(1, 2), upper, compute));
    const at::Tensor delta = (upper.to(at::kFloat) * piece.queries(out)).sum(-1, /*keepdim=*/true);
    const at::Tensor inner = product(upper, piece.keys(v).transpose(1, 2), compute)
                                 .sub_(delta)
                                 .mul_(weights)
                                 .mul_(shape.scale);
    piece.put(grad_q, product(inner, piece.keys(k), compute));
    piece.keys(grad_k).add_(product(inner.transpose(1, 2), piece.queries(q), compute));
  });
  return {grad_q, grad_k.to(compute), grad_v.to(compute)};
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

}  // namespace longshore
