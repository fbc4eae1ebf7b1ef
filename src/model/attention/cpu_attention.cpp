#include "model/attention/cpu_attention.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "base/errors.h"
#include "device/compute_threads.h"
#include "kernels/chunk_rows.h"
#include "kernels/softmax_rows.h"
#include "model/ops/fused_ops.h"
#include "model/ops/wide_products.h"

namespace longshore {
namespace {

// A block of scores has about these rows, and at most these keys: 128 KiB in fp32.
constexpr int64_t kBlockRows = 128, kBlockKeys = 256;
// The heads of a document are divided into at least these parts, if it has as many.
constexpr int64_t kLeastParts = 8;

// The rows of a tensor: `heads` heads of `dim` elements, side by side.
struct Rows {
  char* data;
  int64_t stride;  // elements between positions
  int64_t dim;
  DType dtype;

  Rows(const at::Tensor& x, int64_t dim)
      : data(static_cast<char*>(const_cast<void*>(x.const_data_ptr()))),
        stride(x.stride(0)),
        dim(dim),
        dtype(fused::dtype_of(x)) {
    LONGSHORE_CHECK(x.dim() == 2 && (x.stride(1) == 1 || x.size(1) <= 1)) << x.strides();
  }
  size_t element() const { return dtype == DType::kF32 ? sizeof(float) : sizeof(uint16_t); }
  char* at(int64_t position, int64_t head) const {
    return data + static_cast<size_t>(position * stride + head * dim) * element();
  }
};

// How the query heads of a document are divided among threads: a part is some neighbours that share
// a key head. Depends on the shape alone, because gradients of keys are summed by part.
struct Division {
  explicit Division(const AttentionShape& shape) : group(shape.heads / shape.kv_heads) {
    slices = std::min(group, (kLeastParts + shape.kv_heads - 1) / shape.kv_heads);
    members = (group + slices - 1) / slices;
    parts = shape.kv_heads * slices;
    positions = std::max<int64_t>(1, kBlockRows / members);
  }

  int64_t group;      // query heads that share a key head
  int64_t slices;     // parts that share a key head
  int64_t members;    // query heads of a part; some have one fewer
  int64_t parts;      // of a document
  int64_t positions;  // of a block of queries
};

enum class Pass { kForward, kBackward };

// A thread's memory for one block of queries and keys. Rows are members times positions.
struct BlockMemory {
  float *scores, *weights;           // [rows, keys]; the weights in the compute dtype
  float *queries, *result;           // [rows, dim]; the queries in the compute dtype
  float *largest, *sums, *factors;   // [rows]
  kernels::VisibleColumns* visible;  // [rows]
  // For backward alone.
  float *weight_grads, *score_grads;  // [rows, keys]; the scores' in the compute dtype
  float *upper, *left, *right;        // [rows, dim]; the first in the compute dtype
  float *key_grads, *value_grads;     // [longest document, dim], if parts do not share key heads

  // Returns the floats of all of it; divides `memory` if it is not null.
  int64_t place(float* memory, Pass pass, const Division& division, int64_t dim, int64_t longest) {
    const int64_t rows = division.members * std::min(division.positions, longest);
    const int64_t keys = std::min(kBlockKeys, longest);
    int64_t used = 0;
    const auto take = [&](int64_t count) {
      float* const begin = memory == nullptr ? nullptr : memory + used;
      used += align_up(count, int64_t{16});
      return begin;
    };
    for (float** matrix : {&scores, &weights}) *matrix = take(rows * keys);
    for (float** matrix : {&queries, &result}) *matrix = take(rows * dim);
    for (float** values : {&largest, &sums, &factors}) *values = take(rows);
    static_assert(sizeof(kernels::VisibleColumns) == 2 * sizeof(float));
    visible = reinterpret_cast<kernels::VisibleColumns*>(take(2 * rows));
    if (pass == Pass::kForward) return used;
    for (float** matrix : {&weight_grads, &score_grads}) *matrix = take(rows * keys);
    for (float** matrix : {&upper, &left, &right}) *matrix = take(rows * dim);
    if (division.slices > 1) return used;
    for (float** matrix : {&key_grads, &value_grads}) *matrix = take(longest * dim);
    return used;
  }
};

// Queries [begin, end) against the keys from `first_key` on, as positions of the stream.
struct QueryBlock {
  int64_t begin, end, first_key;
  int64_t size() const { return end - begin; }
};

// Inputs: what all parts of a call read.
struct Inputs {
  Rows q, k, v;
  const AttentionShape& shape;
  const Division& division;
  const float* sinks;  // [heads]; may be null
  int64_t dim() const { return shape.head_dim; }
};

// One part of one document: the passes over its blocks. Its thread owns the memory.
class Part {
 public:
  Part(const Inputs& in, int64_t part, int64_t begin, int64_t end, const BlockMemory& memory)
      : in_(in), m_(memory), begin_(begin), end_(end), key_head_(part / in.division.slices) {
    const int64_t group = in.division.group, slices = in.division.slices, slice = part % slices;
    const int64_t before = slice * group / slices;
    first_head_ = key_head_ * group + before;
    members_ = (slice + 1) * group / slices - before;
  }

  void forward(const Rows& out, float* log_sums) {
    for_blocks([&](const QueryBlock& block) {
      copy_heads(in_.q, block, m_.queries);
      start_sums(block);
      for_keys(block, [&](int64_t first, int64_t keys) {
        const bool adds = first > block.first_key;
        const int64_t rows = rows_of(block);
        multiply_by_keys(in_.k, m_.queries, rows, first, keys, m_.scores);
        kernels::softmax_block(score_block(block, first, keys), m_.scores, m_.largest, m_.sums,
                               m_.factors, m_.weights);
        if (adds) kernels::scale_rows(rows, in_.dim(), m_.factors, m_.result, m_.result);
        block_product(in_.q.dtype, rows, in_.dim(), keys, {m_.weights, keys},
                      {in_.v.at(first, key_head_), in_.v.stride}, adds, m_.result, in_.dim());
      });
      finish(block, out, log_sums);
    });
  }

  // Adds the gradients of the document's keys and values to zeroed sums [document, dim], and writes
  // those of the part's queries and sinks. `sink_grads` [heads] may be null.
  void backward(const Rows& grad, const Rows& out, const float* log_sums, const Rows& grad_q,
                float* key_grads, float* value_grads, float* sink_grads) {
    for_blocks([&](const QueryBlock& block) {
      copy_heads(in_.q, block, m_.queries);
      copy_heads(grad, block, m_.upper);
      read_results(block, grad, out, log_sums);
      for_keys(block, [&](int64_t first, int64_t keys) {
        const int64_t rows = rows_of(block), dim = in_.dim(), at = (first - begin_) * dim;
        multiply_by_keys(in_.k, m_.queries, rows, first, keys, m_.scores);
        multiply_by_keys(in_.v, m_.upper, rows, first, keys, m_.weight_grads);
        kernels::softmax_block_backward(score_block(block, first, keys), m_.scores, m_.weight_grads,
                                        m_.sums, m_.factors, m_.weights, m_.score_grads);
        const DType dtype = in_.q.dtype;
        block_product(dtype, keys, dim, rows, {m_.weights, keys, true}, {m_.upper, dim}, true,
                      value_grads + at, dim);
        block_product(dtype, keys, dim, rows, {m_.score_grads, keys, true}, {m_.queries, dim}, true,
                      key_grads + at, dim);
        block_product(dtype, rows, dim, keys, {m_.score_grads, keys},
                      {in_.k.at(first, key_head_), in_.k.stride}, first > block.first_key,
                      m_.result, dim);
      });
      write_heads(m_.result, block, grad_q);
      if (sink_grads != nullptr) add_sink_gradients(block, sink_grads);
    });
  }

 private:
  int64_t rows_of(const QueryBlock& block) const { return members_ * block.size(); }

  template <typename Body>
  void for_blocks(const Body& body) const {
    for (int64_t at = begin_; at < end_; at += in_.division.positions) {
      const int64_t window = in_.shape.window;
      body(QueryBlock{.begin = at,
                      .end = std::min(at + in_.division.positions, end_),
                      .first_key = window == 0 ? begin_ : std::max(begin_, at - window + 1)});
    }
  }
  template <typename Body>
  void for_keys(const QueryBlock& block, const Body& body) const {
    for (int64_t first = block.first_key; first < block.end; first += kBlockKeys) {
      body(first, std::min(kBlockKeys, block.end - first));
    }
  }
  // Calls body(head, position, row) for every row of a block: heads one after the other.
  template <typename Body>
  void for_rows(const QueryBlock& block, const Body& body) const {
    int64_t row = 0;
    for (int64_t head = first_head_; head < first_head_ + members_; ++head) {
      for (int64_t at = block.begin; at < block.end; ++at) body(head, at, row++);
    }
  }

  void copy_heads(const Rows& from, const QueryBlock& block, float* to) const {
    const size_t bytes = static_cast<size_t>(in_.dim()) * from.element();
    char* const out = reinterpret_cast<char*>(to);
    for_rows(block, [&](int64_t head, int64_t at, int64_t row) {
      std::memcpy(out + static_cast<size_t>(row) * bytes, from.at(at, head), bytes);
    });
  }
  void read_heads(const Rows& from, const QueryBlock& block, float* to) const {
    for (int64_t i = 0; i < members_; ++i, to += block.size() * in_.dim()) {
      kernels::read_rows(from.dtype, block.size(), in_.dim(), from.at(block.begin, first_head_ + i),
                         from.stride, to);
    }
  }
  void write_heads(const float* from, const QueryBlock& block, const Rows& to) const {
    for (int64_t i = 0; i < members_; ++i, from += block.size() * in_.dim()) {
      kernels::write_rows(to.dtype, block.size(), in_.dim(), from,
                          to.at(block.begin, first_head_ + i), to.stride);
    }
  }

  // Multiplies rows in the compute dtype by the keys, or values, from `first` on.
  void multiply_by_keys(const Rows& by, const float* values, int64_t rows, int64_t first,
                        int64_t keys, float* products) const {
    block_product(by.dtype, rows, keys, in_.dim(), {values, in_.dim()},
                  {by.at(first, key_head_), by.stride, true}, false, products, keys);
  }

  kernels::ScoreBlock score_block(const QueryBlock& block, int64_t first, int64_t keys) const {
    for_rows(block, [&](int64_t, int64_t at, int64_t row) {
      const int64_t window = in_.shape.window;
      const int64_t end = std::clamp<int64_t>(at + 1 - first, 0, keys);
      const int64_t begin = window == 0 ? 0 : std::clamp<int64_t>(at - window + 1 - first, 0, end);
      m_.visible[row] = {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
    });
    return {.dtype = in_.q.dtype,
            .rows = rows_of(block),
            .columns = keys,
            .visible = m_.visible,
            .scale = static_cast<float>(in_.shape.scale),
            .cap = static_cast<float>(in_.shape.cap)};
  }

  // A sink is a score that every row sees first.
  void start_sums(const QueryBlock& block) const {
    for_rows(block, [&](int64_t head, int64_t, int64_t row) {
      m_.largest[row] =
          in_.sinks == nullptr ? -std::numeric_limits<float>::infinity() : in_.sinks[head];
      m_.sums[row] = in_.sinks == nullptr ? 0.0f : 1.0f;
    });
  }
  void finish(const QueryBlock& block, const Rows& out, float* log_sums) const {
    for_rows(block, [&](int64_t head, int64_t at, int64_t row) {
      m_.factors[row] = 1.0f / m_.sums[row];
      log_sums[at * in_.shape.heads + head] = m_.largest[row] + std::log(m_.sums[row]);
    });
    kernels::scale_rows(rows_of(block), in_.dim(), m_.factors, m_.result, m_.result);
    write_heads(m_.result, block, out);
  }

  // Reads the log-sum-exp of each row to `sums`, and result times gradient to `factors`.
  void read_results(const QueryBlock& block, const Rows& grad, const Rows& out,
                    const float* log_sums) const {
    read_heads(grad, block, m_.left);
    read_heads(out, block, m_.right);
    kernels::row_products(rows_of(block), in_.dim(), m_.left, m_.right, m_.factors);
    for_rows(block, [&](int64_t head, int64_t at, int64_t row) {
      m_.sums[row] = log_sums[at * in_.shape.heads + head];
    });
  }
  // A sink's value is zero, so its score's gradient is minus its weight times result and gradient.
  void add_sink_gradients(const QueryBlock& block, float* sink_grads) const {
    int64_t row = 0;
    for (int64_t head = first_head_; head < first_head_ + members_; ++head) {
      double sum = 0.0;
      for (int64_t end = row + block.size(); row < end; ++row) {
        sum += static_cast<double>(std::exp(in_.sinks[head] - m_.sums[row])) * m_.factors[row];
      }
      sink_grads[head] -= static_cast<float>(sum);
    }
  }

  const Inputs& in_;
  const BlockMemory& m_;
  int64_t begin_, end_;
  int64_t key_head_;
  int64_t first_head_, members_;  // query heads
};

// Calls body(part of a document, its index, document, memory) for every part of every document, on
// all threads.
template <typename Body>
void for_parts(const Inputs& in, const std::vector<int64_t>& starts, Pass pass, const Body& body) {
  const int64_t documents = std::ssize(starts) - 1;
  int64_t longest = 0;
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    longest = std::max(longest, starts[d + 1] - starts[d]);
  }
  const int64_t elements = BlockMemory().place(nullptr, pass, in.division, in.dim(), longest);
  const at::Tensor scratch = at::empty({parallel_threads(), elements}, at::kFloat);
  parallel_for(0, in.division.parts * documents, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    BlockMemory memory;
    memory.place(scratch.mutable_data_ptr<float>() + parallel_thread() * elements, pass,
                 in.division, in.dim(), longest);
    for (int64_t item = begin; item < end; ++item) {
      // A long document's parts go to different threads.
      const auto document = static_cast<size_t>(item % documents);
      const int64_t part = item / documents;
      body(Part(in, part, starts[document], starts[document + 1], memory), part, document, memory);
    }
  });
}

// KeyGradients: the gradients of keys or of values, fp32 sums until a document's parts are done.
// Parts that share a key head have their own sums, which finish() adds in their order; the
// others use memory of their thread and are written at once.
class KeyGradients {
 public:
  KeyGradients(const at::Tensor& target, const Division& division, int64_t dim)
      : target_(target, dim), slices_(division.slices) {
    if (slices_ == 1) return;
    of_parts_ =
        at::empty({division.parts, target.size(0), dim}, target.options().dtype(at::kFloat));
  }

  // Returns zeroed sums for a part's rows [begin, end), in the thread's memory if that serves.
  float* start(int64_t part, int64_t begin, int64_t end, float* memory) const {
    if (slices_ > 1) {
      memory =
          of_parts_.mutable_data_ptr<float>() + (part * of_parts_.size(1) + begin) * target_.dim;
    }
    std::fill_n(memory, (end - begin) * target_.dim, 0.0f);
    return memory;
  }
  // Writes sums that start() returned in the thread's memory.
  void end(const float* sums, int64_t part, int64_t begin, int64_t end) const {
    if (slices_ == 1) write(sums, begin, end, part);
  }
  void finish() const {
    if (slices_ == 1) return;
    const int64_t positions = of_parts_.size(1);
    float* const data = of_parts_.mutable_data_ptr<float>();
    parallel_for(0, positions, kBlockRows, [&](int64_t begin, int64_t end) {
      const int64_t count = (end - begin) * target_.dim;
      for (int64_t part = 0; part < of_parts_.size(0); part += slices_) {
        float* const sum = data + (part * positions + begin) * target_.dim;
        for (int64_t slice = 1; slice < slices_; ++slice) {
          const float* const more = sum + slice * positions * target_.dim;
          for (int64_t i = 0; i < count; ++i) sum[i] += more[i];
        }
        write(sum, begin, end, part / slices_);
      }
    });
  }

 private:
  void write(const float* sums, int64_t begin, int64_t end, int64_t key_head) const {
    kernels::write_rows(target_.dtype, end - begin, target_.dim, sums, target_.at(begin, key_head),
                        target_.stride);
  }

  Rows target_;
  int64_t slices_;
  at::Tensor of_parts_;  // [parts, T, dim]
};

// Adds the rows of documents [documents, heads] in their order.
at::Tensor sum_of_documents(const at::Tensor& of_sinks) {
  at::Tensor sum = of_sinks[0];
  for (int64_t d = 1; d < of_sinks.size(0); ++d) sum.add_(of_sinks[d]);
  return sum;
}

at::Tensor sink_values(const at::Tensor& sinks) {
  return sinks.defined() ? sinks.to(at::kFloat).contiguous() : sinks;
}
const float* values_of(const at::Tensor& sinks) {
  return sinks.defined() ? sinks.const_data_ptr<float>() : nullptr;
}

}  // namespace

AttentionResult attend_forward_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionShape& shape,
                                   const std::vector<int64_t>& document_starts,
                                   const at::Tensor& own_sinks) {
  const Division division(shape);
  const at::Tensor sinks = sink_values(own_sinks);
  const auto options = q.options().requires_grad(false);
  AttentionResult result;
  result.out = at::empty({q.size(0), shape.heads * shape.head_dim}, options);
  result.sums = {at::empty({q.size(0), shape.heads}, options.dtype(at::kFloat))};
  const int64_t dim = shape.head_dim;
  const Inputs in{{q, dim}, {k, dim}, {v, dim}, shape, division, values_of(sinks)};
  const Rows out(result.out, dim);
  float* const log_sums = result.sums[0].mutable_data_ptr<float>();
  for_parts(in, document_starts, Pass::kForward,
            [&](Part part, int64_t, size_t, const BlockMemory&) { part.forward(out, log_sums); });
  return result;
}

std::vector<at::Tensor> attend_backward_cpu(const at::Tensor& grad, const at::Tensor& q,
                                            const at::Tensor& k, const at::Tensor& v,
                                            const AttentionResult& result,
                                            const AttentionShape& shape,
                                            const std::vector<int64_t>& document_starts,
                                            const at::Tensor& own_sinks) {
  const Division division(shape);
  const at::Tensor sinks = sink_values(own_sinks);
  const int64_t dim = shape.head_dim, positions = q.size(0);
  const auto options = q.options().requires_grad(false), sums = options.dtype(at::kFloat);
  std::vector<at::Tensor> grads = {at::empty({positions, shape.heads * dim}, options),
                                   at::empty({positions, shape.kv_heads * dim}, options),
                                   at::empty({positions, shape.kv_heads * dim}, options)};
  at::Tensor of_sinks;
  if (sinks.defined()) {
    of_sinks = at::zeros({std::ssize(document_starts) - 1, shape.heads}, sums);
  }
  const at::Tensor upper = grad.contiguous();
  const Inputs in{{q, dim}, {k, dim}, {v, dim}, shape, division, values_of(sinks)};
  const Rows grad_q(grads[0], dim);
  const KeyGradients of_keys(grads[1], division, dim), of_values(grads[2], division, dim);
  for_parts(
      in, document_starts, Pass::kBackward,
      [&](Part part, int64_t index, size_t document, const BlockMemory& memory) {
        const int64_t begin = document_starts[document], end = document_starts[document + 1];
        float* const keys = of_keys.start(index, begin, end, memory.key_grads);
        float* const values = of_values.start(index, begin, end, memory.value_grads);
        float* const own_sinks = sinks.defined() ? of_sinks.mutable_data_ptr<float>() +
                                                       static_cast<int64_t>(document) * shape.heads
                                                 : nullptr;
        part.backward({upper, dim}, {result.out, dim}, result.sums.at(0).const_data_ptr<float>(),
                      grad_q, keys, values, own_sinks);
        of_keys.end(keys, index, begin, end);
        of_values.end(values, index, begin, end);
      });
  of_keys.finish();
  of_values.finish();
  if (sinks.defined()) grads.push_back(sum_of_documents(of_sinks).to(own_sinks.scalar_type()));
  return grads;
}

}  // namespace longshore
