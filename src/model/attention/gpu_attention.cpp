#include "model/attention/gpu_attention.h"

#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>

#include "base/bytes.h"
#include "base/errors.h"
#include "device/cuda_runtime.h"
#include "device/gpu_tensors.h"
#include "model/attention/document_attention.h"

namespace longshore {
namespace {

constexpr int64_t kCausal = 1;  // the efficient kernel's "causal from the top left"
// Both kernels load vectors of 16 bytes, so a head's size must be a multiple of that.
constexpr int64_t kVectorBytes = 16;
// The limit of FlashAttention.
constexpr int64_t kFlashMostHead = 256;
// Its backward supports heads between these sizes only on compute capability 8.0 and 9.0.
constexpr int64_t kFlashLargeHead = 192, kFlashLargerHead = 224;
// Documents are a grid dimension, which CUDA limits.
constexpr int64_t kFlashMostDocuments = 65535;
// With a longest document of one token it would use its decoding kernels, which save other sums.
constexpr int64_t kFlashLeastLongest = 2;
// The efficient kernel's sums of a document have a multiple of these rows.
constexpr int64_t kEfficientRows = 32;
// From this compute capability on LibTorch's memory-efficient kernel prints "is for sm80-sm100, but
// was built for sm120" and leaves its results unwritten (LibTorch 2.11).
constexpr int kEfficientNot = 100;
// Indices into AttentionResult::sums of FlashAttention, whose backward takes forward's outputs.
enum FlashSaved : size_t { kSums, kSeed, kOffset, kStarts, kFlashSaved };

bool flash_takes(const at::Tensor& q, const AttentionShape& shape) {
  return q.scalar_type() != at::kFloat && shape.head_dim <= kFlashMostHead &&
         (shape.head_dim <= kFlashLargeHead || shape.head_dim > kFlashLargerHead);
}

at::Tensor in_heads(const at::Tensor& x, const AttentionShape& shape) {
  return x.view({x.size(0), -1, shape.head_dim});
}

// PaddedHeads: heads that are widened with zeros to a size that the kernels take. Zeros add nothing
// to a score, and the values and gradients of the added columns are zero.
class PaddedHeads {
 public:
  PaddedHeads(const at::Tensor& q, const AttentionShape& shape) : own_(shape), padded_(shape) {
    const int64_t multiple = kVectorBytes / static_cast<int64_t>(q.element_size());
    padded_.head_dim = align_up(shape.head_dim, multiple);
  }

  const AttentionShape& shape() const { return padded_; }
  at::Tensor widened(const at::Tensor& x) const {
    const int64_t more = padded_.head_dim - own_.head_dim;
    if (more == 0) return x;
    return at::constant_pad_nd(in_heads(x, own_), {0, more}).view({x.size(0), -1});
  }
  at::Tensor narrowed(const at::Tensor& x) const {
    if (padded_.head_dim == own_.head_dim) return x;
    return in_heads(x, padded_).narrow(2, 0, own_.head_dim).reshape({x.size(0), -1});
  }

 private:
  AttentionShape own_, padded_;
};

// Consecutive documents of one call of FlashAttention: starts[first] to starts[last].
struct DocumentGroup {
  size_t first, last;
  int64_t begin, rows, longest;
  int64_t documents() const { return static_cast<int64_t>(last - first); }
};

// Splits the documents into groups of at most `most_documents`.
std::vector<DocumentGroup> groups_of(const std::vector<int64_t>& starts, int64_t most_documents) {
  std::vector<DocumentGroup> groups;
  const size_t documents = starts.size() - 1;
  for (size_t first = 0; first < documents;) {
    const size_t last = std::min(documents, first + static_cast<size_t>(most_documents));
    int64_t longest = kFlashLeastLongest;
    for (size_t i = first; i < last; ++i) longest = std::max(longest, starts[i + 1] - starts[i]);
    groups.push_back({first, last, starts[first], starts[last] - starts[first], longest});
    first = last;
  }
  return groups;
}

// Returns a group's cumulative lengths from those of all documents.
at::Tensor starts_of(const at::Tensor& starts, const DocumentGroup& group) {
  const at::Tensor own = starts.narrow(0, static_cast<int64_t>(group.first), group.documents() + 1);
  return group.begin == 0 ? own : own - group.begin;
}

// Returns the number of keys that a query sees before its own; nullopt means all.
std::optional<int64_t> window_left(const AttentionShape& shape) {
  return shape.window > 0 ? std::optional(shape.window - 1) : std::nullopt;
}
std::optional<int64_t> window_right(const AttentionShape& shape) {
  return shape.window > 0 ? std::optional(int64_t{0}) : std::nullopt;
}

at::Tensor starts_on(at::Device device, const std::vector<int64_t>& starts) {
  // This copy does not wait for the GPU: the driver buffers the few bytes.
  return at::tensor(starts, at::kLong).to(at::kInt).to(device, at::kInt, /*non_blocking=*/true);
}

// Returns the result and its sums. A GPU that is not installed gives zeros, here and below.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward_call(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& starts,
    int64_t longest, const AttentionShape& shape) {
  if (measures_absent_gpu()) {
    const at::Tensor none = at::empty({0}, q.options());
    const auto sums = q.options().dtype(at::kFloat);
    return {at::zeros(q.sizes(), q.options()), at::zeros({q.size(1), q.size(0)}, sums), none, none};
  }
  auto [out, sums, seed, offset, mask] = at::_flash_attention_forward(
      q, k, v, starts, starts, longest, longest, /*dropout_p=*/0.0, /*is_causal=*/true,
      /*return_debug_mask=*/false, shape.scale, window_left(shape), window_right(shape));
  return {out, sums, seed, offset};
}

AttentionResult flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const AttentionShape& shape, const std::vector<int64_t>& starts) {
  const at::Tensor all = starts_on(q.device(), starts);
  const std::vector<DocumentGroup> groups = groups_of(starts, kFlashMostDocuments);
  AttentionResult result;
  for (const DocumentGroup& group : groups) {
    const auto rows = [&](const at::Tensor& x) {
      return in_heads(x, shape).narrow(0, group.begin, group.rows);
    };
    const at::Tensor cumulative = starts_of(all, group);
    const auto [out, sums, seed, offset] =
        flash_forward_call(rows(q), rows(k), rows(v), cumulative, group.longest, shape);
    if (groups.size() == 1) {
      result.out = out.view({q.size(0), shape.heads * shape.head_dim});
      result.sums = {sums, seed, offset, all};
      return result;
    }
    if (!result.out.defined()) {
      result.out = at::empty({q.size(0), shape.heads * shape.head_dim}, out.options());
      result.sums = {at::empty({shape.heads, q.size(0)}, sums.options()), seed, offset, all};
    }
    rows(result.out).copy_(out);
    result.sums[kSums].narrow(1, group.begin, group.rows).copy_(sums);
  }
  return result;
}

// Returns zeros in the shapes of three tensors.
std::tuple<at::Tensor, at::Tensor, at::Tensor> zeros_of(const at::Tensor& q, const at::Tensor& k,
                                                        const at::Tensor& v) {
  const auto zeros = [](const at::Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  return {zeros(q), zeros(k), zeros(v)};
}

std::vector<at::Tensor> flash_backward(const at::Tensor& grad, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionResult& result, const AttentionShape& shape,
                                       const std::vector<int64_t>& starts) {
  LONGSHORE_CHECK(result.sums.size() == kFlashSaved) << result.sums.size();
  const int64_t count = q.size(0);
  const std::vector<DocumentGroup> groups = groups_of(starts, flash_backward_documents(count));
  std::vector<at::Tensor> grads;
  for (const DocumentGroup& group : groups) {
    const auto rows = [&](const at::Tensor& x) {
      return in_heads(x, shape).narrow(0, group.begin, group.rows);
    };
    const at::Tensor cumulative = starts_of(result.sums[kStarts], group);
    // The kernel needs a call's sums contiguous for each head.
    const at::Tensor sums = result.sums[kSums].narrow(1, group.begin, group.rows).contiguous();
    const auto [grad_q, grad_k, grad_v] =
        measures_absent_gpu()
            ? zeros_of(rows(q), rows(k), rows(v))
            : at::_flash_attention_backward(
                  rows(grad), rows(q), rows(k), rows(v), rows(result.out), sums, cumulative,
                  cumulative, group.longest, group.longest, /*dropout_p=*/0.0,
                  /*is_causal=*/true, result.sums[kSeed], result.sums[kOffset], shape.scale,
                  window_left(shape), window_right(shape));
    const std::array<at::Tensor, 3> own = {grad_q, grad_k, grad_v};
    for (size_t i = 0; i < own.size(); ++i) {
      if (groups.size() == 1) {
        grads.push_back(own[i].reshape({count, -1}));
        continue;
      }
      if (grads.size() == i) {
        grads.push_back(at::empty({count, own[i].size(1) * own[i].size(2)}, own[i].options()));
      }
      rows(grads[i]).copy_(own[i]);
    }
  }
  return grads;
}

// The efficient kernel takes [batch, rows, heads, head_dim] with strides and needs equal numbers of
// query and key heads. The heads that share a key head become its heads and the key heads its
// batch: a stride of 0 shares keys without copies.
class Grouped {
 public:
  explicit Grouped(const AttentionShape& shape)
      : shape_(shape), group_(shape.heads / shape.kv_heads) {}

  at::Tensor queries(const at::Tensor& x, int64_t begin, int64_t end) const {
    return x.narrow(0, begin, end - begin)
        .view({end - begin, shape_.kv_heads, group_, shape_.head_dim})
        .permute({1, 0, 2, 3});
  }
  at::Tensor keys(const at::Tensor& x, int64_t begin, int64_t end) const {
    return one_per_group(x, begin, end)
        .unsqueeze(2)
        .expand({shape_.kv_heads, end - begin, group_, shape_.head_dim});
  }
  // Returns [kv_heads, rows, head_dim].
  at::Tensor one_per_group(const at::Tensor& x, int64_t begin, int64_t end) const {
    return x.narrow(0, begin, end - begin)
        .view({end - begin, shape_.kv_heads, shape_.head_dim})
        .permute({1, 0, 2});
  }

 private:
  const AttentionShape& shape_;
  int64_t group_;
};

std::optional<int64_t> window_of(const AttentionShape& shape) {
  return shape.window > 0 ? std::optional(shape.window) : std::nullopt;
}

bool efficient_kernel_runs(const at::Tensor& q) {
  return compute_capability(std::max<int>(0, q.device().index())) < kEfficientNot;
}

// q, k and v are [kv_heads, rows, group, head_dim]. Returns the result and its sums.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_forward_call(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionShape& shape) {
  if (measures_absent_gpu()) {
    const at::Tensor none = at::empty({0}, q.options());
    const at::Tensor sums =
        at::zeros({q.size(0), q.size(2), align_up(q.size(1), kEfficientRows)}, at::kFloat);
    return {at::zeros(q.sizes(), q.options()), sums, none, none};
  }
  if (!efficient_kernel_runs(q)) {
    const auto [out, sums] = attend_forward_plain(q, k.select(2, 0), v.select(2, 0), shape);
    const at::Tensor none = at::empty({0}, q.options());
    return {out, sums, none, none};
  }
  auto [out, sums, seed, offset, most_q, most_k] = at::_efficient_attention_forward(
      q, k, v, /*bias=*/std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt,
      /*dropout_p=*/0.0, kCausal, /*compute_log_sumexp=*/true, shape.scale, std::nullopt,
      window_of(shape));
  return {out, sums, seed, offset};
}

// Likewise. Returns the gradients of q, k and v for the document of index `document`.
std::tuple<at::Tensor, at::Tensor, at::Tensor> efficient_backward_call(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const std::vector<at::Tensor>& saved, size_t document,
    const AttentionShape& shape) {
  if (measures_absent_gpu()) return zeros_of(q, k, v);
  if (!efficient_kernel_runs(q)) {
    const auto [of_q, of_k, of_v] =
        attend_backward_plain(grad, q, k.select(2, 0), v.select(2, 0), out,
                              saved.at(3 * document).narrow(2, 0, q.size(1)), shape);
    return {of_q, of_k.unsqueeze(2), of_v.unsqueeze(2)};
  }
  auto [of_q, of_k, of_v, of_bias] = at::_efficient_attention_backward(
      grad, q, k, v, /*bias=*/std::nullopt, out, std::nullopt, std::nullopt, q.size(1), k.size(1),
      saved.at(3 * document), /*dropout_p=*/0.0, saved.at(3 * document + 1),
      saved.at(3 * document + 2), kCausal, /*bias_requires_grad=*/false, shape.scale,
      /*num_splits_key=*/1, window_of(shape));
  return {of_q, of_k, of_v};
}

AttentionResult efficient_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionShape& shape, const std::vector<int64_t>& starts) {
  const Grouped views(shape);
  AttentionResult result;
  result.out =
      at::empty({q.size(0), shape.heads * shape.head_dim}, q.options().requires_grad(false));
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t begin = starts[i], end = starts[i + 1];
    const auto [out, sums, seed, offset] = efficient_forward_call(
        views.queries(q, begin, end), views.keys(k, begin, end), views.keys(v, begin, end), shape);
    views.queries(result.out, begin, end).copy_(out);
    result.sums.insert(result.sums.end(), {sums, seed, offset});
  }
  return result;
}

std::vector<at::Tensor> efficient_backward(const at::Tensor& grad, const at::Tensor& q,
                                           const at::Tensor& k, const at::Tensor& v,
                                           const AttentionResult& result,
                                           const AttentionShape& shape,
                                           const std::vector<int64_t>& starts) {
  const Grouped views(shape);
  const auto options = q.options().requires_grad(false);
  const int64_t key_width = shape.kv_heads * shape.head_dim;
  at::Tensor grad_q = at::empty({q.size(0), shape.heads * shape.head_dim}, options);
  at::Tensor grad_k = at::empty({q.size(0), key_width}, options);
  at::Tensor grad_v = at::empty({q.size(0), key_width}, options);
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t begin = starts[i], end = starts[i + 1];
    const auto [of_q, of_k, of_v] = efficient_backward_call(
        views.queries(grad, begin, end), views.queries(q, begin, end), views.keys(k, begin, end),
        views.keys(v, begin, end), views.queries(result.out, begin, end), result.sums, i, shape);
    views.queries(grad_q, begin, end).copy_(of_q);
    // One split of the keys and a sum over the group's heads keep the order fixed.
    views.one_per_group(grad_k, begin, end).copy_(of_k.sum(2));
    views.one_per_group(grad_v, begin, end).copy_(of_v.sum(2));
  }
  return {grad_q, grad_k, grad_v};
}

// ---- Sinks: a sink is one more score for each head, which takes a share of the softmax and
// adds no value. It is added after attention without sinks: out is scaled by the share left over,
// and the log-sum-exp includes the sink. The kernels' own backward over both then gives the
// gradients with sinks.

// Joins the sinks [heads, 1] to the result of one document, out [heads, rows, head_dim] and sums
// fp32 [heads, rows]. Overwrites both.
void join_sinks(const at::Tensor& out, const at::Tensor& sums, const at::Tensor& sinks) {
  const at::Tensor joined = at::logaddexp(sums, sinks.to(at::kFloat));
  out.mul_((sums - joined).exp_().unsqueeze(-1));
  sums.copy_(joined);
}

// Returns the gradient of the sinks, fp32 [heads], from out and sums as join_sinks wrote them.
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

// Return a document's rows, [heads, rows, head_dim], and its sums, [heads, rows].
at::Tensor heads_of(const at::Tensor& x, const AttentionShape& shape, int64_t begin, int64_t end) {
  return in_heads(x, shape).narrow(0, begin, end - begin).permute({1, 0, 2});
}
at::Tensor sums_of(const AttentionResult& result, bool flash, const AttentionShape& shape,
                   size_t document, int64_t begin, int64_t end) {
  if (flash) return result.sums[kSums].narrow(1, begin, end - begin);
  // The efficient kernel pads these sums; key heads are their batch.
  const at::Tensor& sums = result.sums.at(3 * document);
  return sums.view({shape.heads, sums.size(-1)}).narrow(1, 0, end - begin);
}

// Calls body(document, place) for the sums of every document of the efficient kernel, without their
// padding: [kv_heads, group, rows] over the place.
template <typename Body>
void for_kept_documents(const AttentionPlace& place, const AttentionShape& shape,
                        const std::vector<int64_t>& starts, Body body) {
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t rows = starts[i + 1] - starts[i];
    body(i, place.sums.narrow(0, starts[i], rows)
                .view({shape.kv_heads, shape.heads / shape.kv_heads, rows}));
  }
}

}  // namespace

int64_t flash_backward_documents(int64_t rows) {
  return std::clamp<int64_t>(rows / kFlashPadding, 1, kFlashMostDocuments);
}

AttentionResult attend_forward_gpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionShape& own,
                                   const std::vector<int64_t>& document_starts,
                                   const at::Tensor& sinks) {
  if (own.cap != 0.0) return attend_forward_capped(q, k, v, own, document_starts);
  const PaddedHeads heads(q, own);
  const AttentionShape& shape = heads.shape();
  const bool flash = flash_takes(q, shape);
  const auto forward = flash ? flash_forward : efficient_forward;
  AttentionResult result =
      forward(heads.widened(q), heads.widened(k), heads.widened(v), shape, document_starts);
  for (size_t i = 0; sinks.defined() && i + 1 < document_starts.size(); ++i) {
    const int64_t begin = document_starts[i], end = document_starts[i + 1];
    join_sinks(heads_of(result.out, shape, begin, end),
               sums_of(result, flash, shape, i, begin, end), sinks.unsqueeze(1));
  }
  result.out = heads.narrowed(result.out);
  return result;
}

std::vector<at::Tensor> attend_backward_gpu(const at::Tensor& own_grad, const at::Tensor& q,
                                            const at::Tensor& k, const at::Tensor& v,
                                            const AttentionResult& own_result,
                                            const AttentionShape& own,
                                            const std::vector<int64_t>& document_starts,
                                            const at::Tensor& sinks) {
  if (own.cap != 0.0) return attend_backward_capped(own_grad, q, k, v, own, document_starts);
  const PaddedHeads heads(q, own);
  const AttentionShape& shape = heads.shape();
  const bool flash = flash_takes(q, shape);
  const at::Tensor grad = heads.widened(own_grad);
  const AttentionResult result = {heads.widened(own_result.out), own_result.sums};
  const auto backward = flash ? flash_backward : efficient_backward;
  std::vector<at::Tensor> grads = backward(grad, heads.widened(q), heads.widened(k),
                                           heads.widened(v), result, shape, document_starts);
  for (at::Tensor& one : grads) one = heads.narrowed(one);
  if (!sinks.defined()) return grads;
  at::Tensor sum = at::zeros({shape.heads}, sinks.options().dtype(at::kFloat).requires_grad(false));
  for (size_t i = 0; i + 1 < document_starts.size(); ++i) {
    const int64_t begin = document_starts[i], end = document_starts[i + 1];
    sum.add_(sink_gradient(heads_of(grad, shape, begin, end),
                           heads_of(result.out, shape, begin, end),
                           sums_of(result, flash, shape, i, begin, end), sinks.unsqueeze(1)));
  }
  grads.push_back(sum.to(sinks.scalar_type()));
  return grads;
}

void keep_sums_gpu(const AttentionResult& result, const AttentionPlace& place,
                   const AttentionShape& shape, const std::vector<int64_t>& document_starts) {
  if (shape.cap != 0.0) {
    place.sums.zero_();
    return;
  }
  if (flash_takes(place.out, PaddedHeads(place.out, shape).shape())) {
    const at::Tensor& sums = result.sums.at(kSums);
    place.sums.view(sums.sizes()).copy_(sums);
    return;
  }
  for_kept_documents(place, shape, document_starts, [&](size_t i, const at::Tensor& kept) {
    kept.copy_(
        result.sums.at(3 * i).view({kept.size(0), kept.size(1), -1}).narrow(2, 0, kept.size(2)));
  });
}

std::vector<at::Tensor> kept_sums_gpu(const AttentionPlace& place, const AttentionShape& shape,
                                      const std::vector<int64_t>& document_starts) {
  if (shape.cap != 0.0) return {};
  const auto none = [&place](at::IntArrayRef sizes, at::ScalarType type) {
    // Without dropout no kernel reads the state of the random numbers.
    return at::empty(sizes, place.sums.options().dtype(type));
  };
  if (flash_takes(place.out, PaddedHeads(place.out, shape).shape())) {
    return {place.sums.view({shape.heads, place.sums.size(0)}), none({2}, at::kUInt64),
            none({}, at::kUInt64), starts_on(place.out.device(), document_starts)};
  }
  std::vector<at::Tensor> saved;
  for_kept_documents(place, shape, document_starts, [&](size_t, const at::Tensor& kept) {
    // The kernel pads its sums with infinity, which gives no weight.
    const at::Tensor sums =
        at::full({kept.size(0), kept.size(1), align_up(kept.size(2), kEfficientRows)},
                 std::numeric_limits<double>::infinity(), kept.options());
    sums.narrow(2, 0, kept.size(2)).copy_(kept);
    saved.insert(saved.end(), {sums, none({}, at::kLong), none({}, at::kLong)});
  });
  return saved;
}

}  // namespace longshore
