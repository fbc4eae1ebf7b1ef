#include "model/attention/continued_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "device/compute_threads.h"
#include "device/gpu_tensors.h"
#include "kernels/continued_rows.h"
#include "model/ops/fused_ops.h"

namespace longshore {
namespace {

// The new positions of a sequence that a thread takes at once, and the rows for which LibTorch
// makes one matrix of scores.
constexpr int64_t kPiecePositions = 64, kScorePositions = 256;

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
           const AttentionShape& shape, const ContinuedRows& one) {
  const int64_t width = shape.kv_heads * shape.head_dim;
  const int64_t all = one.before + one.count;
  const int64_t seen = shape.window == 0 ? all
                       : k.defined()     ? shape.window
                                         : shape.window - 1 + one.count;
  LONGSHORE_CHECK(one.count >= 1 && one.before >= 0 && one.begin >= 0 &&
                  one.begin + one.count <= q.size(0))
      << one.begin << " and " << one.count << " of " << q.size(0);
  LONGSHORE_CHECK(k.defined() == v.defined());
  for (const at::Tensor* cache : {&one.keys, &one.values}) {
    LONGSHORE_CHECK(cache->dim() == 2 && cache->is_contiguous() && cache->size(1) == width &&
                    cache->scalar_type() == q.scalar_type())
        << cache->sizes();
    LONGSHORE_CHECK(cache->size(0) >= std::min(all, seen))
        << cache->size(0) << " rows for " << all << " positions";
  }
  for (const at::Tensor* rows : {&k, &v}) {
    LONGSHORE_CHECK(!rows->defined() ||
                    (rows->size(0) == q.size(0) && rows->size(1) == width && rows->stride(1) == 1 &&
                     rows->scalar_type() == q.scalar_type()));
  }
}

// Calls copy(row of k and v, row of the cache, rows) for the new rows of a sequence that its cache
// keeps: of those that share a place the last.
template <typename Copy>
void for_kept_rows(const ContinuedRows& one, const Copy& copy) {
  const int64_t capacity = one.keys.size(0), end = one.before + one.count;
  for (int64_t at = std::max(one.before, end - capacity); at < end;) {
    const int64_t place = at % capacity, count = std::min(end - at, capacity - place);
    copy(one.begin + at - one.before, place, count);
    at += count;
  }
}

// One piece of the new positions of one sequence, for one key head.
struct Piece {
  size_t sequence;
  int64_t key_head, begin, end;
};

std::vector<Piece> pieces_of(std::span<const ContinuedRows> sequences, int64_t key_heads) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int64_t head = 0; head < key_heads; ++head) {
      for (int64_t at = 0; at < sequences[i].count; at += kPiecePositions) {
        pieces.push_back({i, head, at, std::min(at + kPiecePositions, sequences[i].count)});
      }
    }
  }
  return pieces;
}

template <typename Byte>
Byte* place(Byte* begin, const at::Tensor& of, int64_t element) {
  return begin + static_cast<size_t>(element) * of.element_size();
}
const char* place(const at::Tensor& of, int64_t element) {
  return of.defined() ? place(static_cast<const char*>(of.const_data_ptr()), of, element) : nullptr;
}

at::Tensor attend_on_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const AttentionShape& shape, std::span<const ContinuedRows> sequences,
                         const at::Tensor& own_sinks) {
  const int64_t dim = shape.head_dim, group = shape.heads / shape.kv_heads;
  at::Tensor out = at::empty({q.size(0), q.size(1)}, q.options().requires_grad(false));
  char* const result = static_cast<char*>(out.mutable_data_ptr());
  const at::Tensor sinks = own_sinks.defined() ? own_sinks.to(at::kFloat).contiguous() : own_sinks;
  const kernels::ContinuedShape kernel{.dtype = fused::dtype_of(q),
                                       .group = group,
                                       .dim = dim,
                                       .window = shape.window,
                                       .scale = static_cast<float>(shape.scale),
                                       .cap = static_cast<float>(shape.cap)};
  const std::vector<Piece> pieces = pieces_of(sequences, shape.kv_heads);
  const int64_t elements = kernels::continued_scratch(kernel);
  const at::Tensor scratch = at::empty({parallel_threads(), elements}, at::kFloat);
  float* const memory = scratch.mutable_data_ptr<float>();
  parallel_for(0, std::ssize(pieces), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      const ContinuedRows& one = sequences[piece.sequence];
      const int64_t key_column = piece.key_head * dim, column = key_column * group;
      const kernels::ContinuedHead head{
          .before = one.before,
          .q = place(q, one.begin * q.stride(0) + column),
          .q_stride = q.stride(0),
          .new_keys = k.defined() ? place(k, one.begin * k.stride(0) + key_column) : nullptr,
          .new_values = v.defined() ? place(v, one.begin * v.stride(0) + key_column) : nullptr,
          .key_stride = k.defined() ? k.stride(0) : 0,
          .value_stride = v.defined() ? v.stride(0) : 0,
          .keys = place(one.keys, key_column),
          .values = place(one.values, key_column),
          .cache_stride = one.keys.size(1),
          .capacity = one.keys.size(0),
          .sinks =
              sinks.defined() ? sinks.const_data_ptr<float>() + piece.key_head * group : nullptr,
          .out = place(result, out, one.begin * out.size(1) + column),
          .out_stride = out.size(1)};
      kernels::continued_rows_cpu(kernel, head, piece.begin, piece.end,
                                  memory + parallel_thread() * elements);
    }
  });
  return out;
}

// Writes the new rows to the caches without LibTorch's operations, which take longer than the
// copies of short rows.
void keep_on_cpu(const at::Tensor& k, const at::Tensor& v,
                 std::span<const ContinuedRows> sequences) {
  const size_t bytes = static_cast<size_t>(k.size(1)) * k.element_size();
  parallel_for(0, std::ssize(sequences), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ContinuedRows& one = sequences[static_cast<size_t>(i)];
      for_kept_rows(one, [&](int64_t from, int64_t to, int64_t count) {
        for (const auto& [rows, cache] : {std::pair(&k, &one.keys), std::pair(&v, &one.values)}) {
          char* out =
              static_cast<char*>(cache->mutable_data_ptr()) + static_cast<size_t>(to) * bytes;
          for (int64_t row = from; row < from + count; ++row, out += bytes) {
            std::memcpy(out, place(*rows, row * rows->stride(0)), bytes);
          }
        }
      });
    }
  });
}

// Returns the keys or values of the positions [first, before + count), fp32 [kv_heads, positions,
// head_dim].
at::Tensor seen_rows(const at::Tensor& rows, const ContinuedRows& one, const at::Tensor& cache,
                     int64_t first, const AttentionShape& shape) {
  const int64_t cached = rows.defined() ? one.before : one.before + one.count;
  const at::Tensor places = at::arange(first, std::max(first, cached),
                                       at::TensorOptions(at::kLong).device(cache.device()))
                                .remainder_(cache.size(0));
  at::Tensor all = cache.index_select(0, places);
  if (rows.defined()) all = at::cat({all, rows.narrow(0, one.begin, one.count)});
  return all.view({all.size(0), shape.kv_heads, shape.head_dim}).transpose(0, 1).to(at::kFloat);
}

// Writes the results of one sequence with LibTorch's operations.
void attend_with_matrices(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionShape& shape, const ContinuedRows& one,
                          const at::Tensor& sinks, const at::Tensor& out) {
  const int64_t group = shape.heads / shape.kv_heads, end = one.before + one.count;
  const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(0, one.before - shape.window + 1);
  const at::Tensor keys = seen_rows(k, one, one.keys, first, shape);
  const at::Tensor values = seen_rows(v, one, one.values, first, shape);
  const auto longs = at::TensorOptions(at::kLong).device(q.device());
  const at::Tensor key_places = at::arange(first, end, longs).unsqueeze(0);
  for (int64_t at = 0; at < one.count; at += kScorePositions) {
    const int64_t count = std::min(kScorePositions, one.count - at);
    const at::Tensor rows = q.narrow(0, one.begin + at, count)
                                .reshape({count, shape.kv_heads, group, shape.head_dim})
                                .permute({1, 2, 0, 3})
                                .reshape({shape.kv_heads, group * count, shape.head_dim})
                                .to(at::kFloat);
    at::Tensor scores = at::bmm(rows, keys.transpose(1, 2)).mul_(shape.scale);
    if (shape.cap != 0.0) scores.div_(shape.cap).tanh_().mul_(shape.cap);
    const at::Tensor places =
        at::arange(one.before + at, one.before + at + count, longs).unsqueeze(1);
    at::Tensor hidden = key_places > places;
    if (shape.window != 0) hidden = hidden.logical_or(key_places <= places - shape.window);
    scores = scores.view({shape.heads, count, end - first}).masked_fill_(hidden, -HUGE_VAL);
    if (sinks.defined()) {
      const at::Tensor more = sinks.to(at::kFloat).view({-1, 1, 1}).expand({-1, count, 1});
      scores = at::softmax(at::cat({scores, more}, 2), 2).narrow(2, 0, end - first);
    } else {
      scores = at::softmax(scores, 2);
    }
    const at::Tensor sums =
        at::bmm(scores.reshape({shape.kv_heads, group * count, end - first}), values)
            .view({shape.heads, count, shape.head_dim})
            .transpose(0, 1);
    out.narrow(0, one.begin + at, count).view({count, shape.heads, shape.head_dim}).copy_(sums);
  }
}

}  // namespace

at::Tensor attend_continued(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionShape& shape, std::span<const ContinuedRows> sequences,
                            const at::Tensor& sinks) {
  LONGSHORE_CHECK(q.dim() == 2 && q.size(1) == shape.heads * shape.head_dim && q.stride(1) == 1)
      << q.sizes();
  LONGSHORE_CHECK(!sinks.defined() || sinks.numel() == shape.heads);
  for (const ContinuedRows& one : sequences) check(q, k, v, shape, one);
  if (!takes_gpu_form(q)) {
    at::Tensor out = attend_on_cpu(q, k, v, shape, sequences, sinks);
    if (k.defined()) keep_on_cpu(k, v, sequences);
    return out;
  }
  at::Tensor out = at::empty({q.size(0), q.size(1)}, q.options().requires_grad(false));
  for (const ContinuedRows& one : sequences) {
    attend_with_matrices(q, k, v, shape, one, sinks, out);
    if (!k.defined()) continue;
    for_kept_rows(one, [&](int64_t from, int64_t to, int64_t count) {
      one.keys.narrow(0, to, count).copy_(k.narrow(0, from, count));
      one.values.narrow(0, to, count).copy_(v.narrow(0, from, count));
    });
  }
  return out;
}

}  // namespace longshore
