// The recurrence of gated DeltaNet on the CPU.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/errors.h"
#include "device/compute_threads.h"
#include "kernels/chunk_rows.h"
#include "model/mixers/delta_scan.h"
#include "model/mixers/gate_values.h"
#include "model/ops/document_chunks.h"
#include "model/ops/fused_ops.h"

namespace longshore {
namespace {

using kernels::add_scaled_rows;
using kernels::decays_between;
using kernels::kLeastExponent;
using kernels::read_rows;
using kernels::row_products;
using kernels::scale_rows;
using kernels::solve_triangular;
using kernels::write_rows;

// Cuts a thread's scratch into fp32 tensors.
class Scratch {
 public:
  explicit Scratch(float* memory) : next_(memory) {}
  at::Tensor take(at::IntArrayRef sizes) {
    at::Tensor tensor = at::from_blob(next_, sizes, at::kFloat);
    next_ += tensor.numel();
    return tensor;
  }

 private:
  float* next_;
};

float* data(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<float>();
}

void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  at::mm_out(out, a, b);
}

// Copies a head's columns of some rows to contiguous fp32, and back.
void read(const at::Tensor& rows, const at::Tensor& to) {
  LONGSHORE_CHECK(rows.stride(1) == 1);
  read_rows(fused::dtype_of(rows), rows.size(0), rows.size(1), rows.const_data_ptr(),
            rows.stride(0), data(to));
}
void write(const at::Tensor& from, const at::Tensor& rows) {
  LONGSHORE_CHECK(rows.stride(1) == 1);
  write_rows(fused::dtype_of(rows), rows.size(0), rows.size(1), data(from), rows.mutable_data_ptr(),
             rows.stride(0));
}

// The memory for chunks of `size` positions. Of tensors with 2 * size rows the first half belongs
// to the keys and the second to the queries or to the results.
struct ChunkMemory {
  int64_t size;
  at::Tensor units;      // [2 size, key_dim] keys and queries as unit vectors; queries are scaled
  at::Tensor raw;        // [2 size, size] their products with the keys
  at::Tensor pairs;      // [size, size] decay between positions; 0 above the diagonal
  at::Tensor products;   // [2 size, size] raw, times pairs
  at::Tensor system;     // [size, size] the first half of products, times beta
  at::Tensor known;      // [2 size, value_dim] what keys and queries read from the state
  at::Tensor values;     // [size, value_dim]
  at::Tensor corrected;  // [size, value_dim] the values that are written
  at::Tensor writing;    // [size, key_dim] keys times the decay to the chunk's end
  // For backward alone.
  at::Tensor upper;    // [2 size, value_dim] gradients of the system's right sides and of results
  at::Tensor scaled;   // [2 size, value_dim] the gradient of `known`
  at::Tensor between;  // [2 size, size] the gradients of products, then of raw
  at::Tensor turned;   // [2 size, key_dim] what gradients of units get from a state
  at::Tensor grads;    // [2 size, key_dim] the gradients of units

  ChunkMemory(const DeltaSpec& spec, int64_t positions, Scratch scratch) : size(positions) {
    const int64_t both = 2 * size, keys = spec.key_dim, width = spec.value_dim;
    units = scratch.take({both, keys});
    raw = scratch.take({both, size});
    pairs = scratch.take({size, size});
    products = scratch.take({both, size});
    system = scratch.take({size, size});
    known = scratch.take({both, width});
    values = scratch.take({size, width});
    corrected = scratch.take({size, width});
    writing = scratch.take({size, keys});
    upper = scratch.take({both, width});
    scaled = scratch.take({both, width});
    between = scratch.take({both, size});
    turned = scratch.take({both, keys});
    grads = scratch.take({both, keys});
  }
  static int64_t elements(const DeltaSpec& spec) {
    return kScanChunk * (7 * spec.key_dim + 8 * spec.value_dim + 8 * kScanChunk);
  }
  at::Tensor keys() const { return units.narrow(0, 0, size); }
  at::Tensor queries() const { return units.narrow(0, size, size); }
  at::Tensor scores() const { return products.narrow(0, size, size); }
  at::Tensor output_grads() const { return upper.narrow(0, size, size); }
};

// The gates of a chunk's positions for one value head.
struct Gates {
  std::array<float, kScanChunk> beta, sum;  // sum: of decays, to each position
  std::array<float, kScanChunk> grown;      // decay from before the chunk to each position
  std::array<float, kScanChunk> left;       // decay from each position to the chunk's end
  float whole = 0.0f;                       // decay of the whole chunk
};

// One key head: the passes over the chunks of a document, in the order of positions or backward.
// Its thread owns the scratch.
class HeadScan {
 public:
  HeadScan(const DeltaTerms& terms, int64_t key_head, float* scratch)
      : terms_(terms),
        spec_(terms.spec),
        key_head_(key_head),
        times_(spec_.value_heads / spec_.key_heads) {
    Scratch memory(scratch);
    states_ = memory.take({times_, spec_.key_dim, spec_.value_dim});
    chunk_scratch_ = scratch + states_.numel();
  }
  static int64_t scratch_elements(const DeltaSpec& spec) {
    const int64_t times = spec.value_heads / spec.key_heads;
    return times * spec.key_dim * spec.value_dim + ChunkMemory::elements(spec);
  }

  // `kept`, if it is defined, gets the states before the chunks of the document but the first:
  // [chunks - 1, value_heads, key_dim, value_dim].
  void forward(int64_t begin, int64_t end, const at::Tensor& out, const at::Tensor& kept) {
    for (int64_t at = begin; at < end; at += kScanChunk) {
      start_chunk(at, std::min(kScanChunk, end - at));
      for (int64_t i = 0; i < times_; ++i) {
        const int64_t value_head = key_head_ * times_ + i;
        if (at > begin && kept.defined()) {
          kept[(at - begin) / kScanChunk - 1][value_head].copy_(states_[i]);
        }
        start_head(at, value_head);
        forward_chunk(value_rows(out, 0, at, value_head), states_[i], at > begin,
                      at + kScanChunk < end);
      }
    }
  }

  void backward(int64_t begin, int64_t end, const at::Tensor& grad, const at::Tensor& kept,
                const DeltaGradients& out) {
    const int64_t chunks = (end - begin + kScanChunk - 1) / kScanChunk;
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      const int64_t at = begin + chunk * kScanChunk;
      start_chunk(at, std::min(kScanChunk, end - at));
      memory_->grads.zero_();
      for (int64_t i = 0; i < times_; ++i) {
        const int64_t value_head = key_head_ * times_ + i;
        start_head(at, value_head);
        read(value_rows(grad, 0, at, value_head), memory_->output_grads());
        backward_chunk(chunk > 0 ? kept[chunk - 1][value_head] : at::Tensor(), states_[i],
                       chunk + 1 < chunks);
        write(memory_->values, value_rows(out.mixed, 2 * spec_.key_width(), at, value_head));
        write_gate_gradients(at, value_head, out);
      }
      write_unit_gradients(at, out.mixed);
    }
  }

 private:
  at::Tensor value_rows(const at::Tensor& x, int64_t first_column, int64_t at,
                        int64_t value_head) const {
    return x.narrow(0, at, memory_->size)
        .narrow(1, first_column + value_head * spec_.value_dim, spec_.value_dim);
  }
  // Returns the columns of this head's keys or queries.
  at::Tensor unit_rows(const at::Tensor& mixed, int64_t at, bool queries) const {
    const int64_t column = (queries ? 0 : spec_.key_width()) + key_head_ * spec_.key_dim;
    return mixed.narrow(0, at, memory_->size).narrow(1, column, spec_.key_dim);
  }

  // Reads the unit vectors of a chunk and multiplies them.
  void start_chunk(int64_t at, int64_t size) {
    if (!memory_ || memory_->size != size) memory_.emplace(spec_, size, Scratch(chunk_scratch_));
    const ChunkMemory& m = *memory_;
    const int64_t width = spec_.key_dim;
    read(unit_rows(terms_.mixed, at, false), m.keys());
    read(unit_rows(terms_.mixed, at, true), m.queries());
    std::array<float, 2 * kScanChunk> factors{};
    row_products(2 * size, width, data(m.units), data(m.units), factors.data());
    for (size_t i = 0; i < static_cast<size_t>(2 * size); ++i) {
      factors_[i] = 1.0f / std::sqrt(factors[i] + static_cast<float>(kDeltaNormEps));
      factors[i] = factors_[i] * unit_scale(i);
    }
    scale_rows(2 * size, width, factors.data(), data(m.units), data(m.units));
    multiply(m.raw, m.units, m.keys().t());
  }
  // Returns the factor of a unit vector: keys come first, then queries.
  float unit_scale(size_t i) const {
    return i < static_cast<size_t>(memory_->size) ? 1.0f : static_cast<float>(terms_.scale());
  }

  // Reads a value head's gates and values, and computes all that depends on the gates alone.
  void start_head(int64_t at, int64_t value_head) {
    const ChunkMemory& m = *memory_;
    const auto size = static_cast<size_t>(m.size);
    const auto heads = static_cast<size_t>(spec_.value_heads);
    const int64_t first = at * spec_.value_heads + value_head;
    const float* const beta = terms_.beta.const_data_ptr<float>() + first;
    const float* const decay = terms_.decay.const_data_ptr<float>() + first;
    float sum = 0.0f;
    for (size_t i = 0; i < size; ++i) {
      gates_.beta[i] = beta[i * heads];
      gates_.sum[i] = sum += decay[i * heads];
    }
    for (size_t i = 0; i < size; ++i) {
      gates_.grown[i] = decay_of(gates_.sum[i]);
      gates_.left[i] = decay_of(sum - gates_.sum[i]);
    }
    gates_.whole = decay_of(sum);
    decays_between(m.size, gates_.sum.data(), kLeastExponent, data(m.pairs));
    at::Tensor products = m.products.view({2, m.size, m.size});
    at::mul_out(products, m.raw.view({2, m.size, m.size}), m.pairs);
    scale_rows(m.size, m.size, gates_.beta.data(), data(m.products), data(m.system));
    read(value_rows(terms_.mixed, 2 * spec_.key_width(), at, value_head), m.values);
  }

  // Takes what the state already knows from the values, and solves for the corrected ones.
  void correct(bool reads) {
    const ChunkMemory& m = *memory_;
    const int64_t width = spec_.value_dim;
    if (reads) {
      const auto taken = factors_of([&](size_t i) { return -gates_.grown[i]; });
      add_scaled_rows(m.size, width, taken.data(), data(m.known), data(m.values));
    }
    scale_rows(m.size, width, gates_.beta.data(), data(m.values), data(m.corrected));
    solve_triangular(m.size, data(m.system), false, width, data(m.corrected));
    scale_rows(m.size, spec_.key_dim, gates_.left.data(), data(m.units), data(m.writing));
  }

  // Writes a chunk's result to `out` and moves the state to the chunk's end.
  void forward_chunk(const at::Tensor& out, const at::Tensor& state, bool reads, bool passes) {
    const ChunkMemory& m = *memory_;
    if (reads) multiply(m.known, m.units, state);
    correct(reads);
    const at::Tensor result = m.known.narrow(0, m.size, m.size);
    if (reads) {
      scale_rows(m.size, spec_.value_dim, gates_.grown.data(), data(result), data(result));
    }
    result.addmm_(m.scores(), m.corrected, reads ? 1.0 : 0.0);
    write(result, out);
    if (passes) state.addmm_(m.writing.t(), m.corrected, reads ? gates_.whole : 0.0);
  }

  // `state` is that before the chunk, undefined in the first. `state_grad` is the gradient of that
  // at the chunk's end if the state `passes`; it becomes that of `state`. The gradient of the
  // values replaces them.
  void backward_chunk(const at::Tensor& state, const at::Tensor& state_grad, bool passes) {
    const ChunkMemory& m = *memory_;
    const bool reads = state.defined();
    if (reads) multiply(m.known.narrow(0, 0, m.size), m.keys(), state);
    correct(reads);
    const at::Tensor sides = m.upper.narrow(0, 0, m.size);
    multiply(sides, m.scores().t(), m.output_grads());
    if (passes) sides.addmm_(m.writing, state_grad);
    solve_triangular(m.size, data(m.system), true, spec_.value_dim, data(m.upper));
    split_side_gradients();
    multiply(m.between, m.upper, m.corrected.t());
    split_product_gradients();
    m.grads.addmm_(m.between, m.keys());
    m.grads.narrow(0, 0, m.size).addmm_(m.between.t(), m.units);
    if (reads) {
      multiply(m.turned, m.scaled, state.t());
      add_read_gradients();
    }
    if (passes) {
      multiply(m.turned.narrow(0, 0, m.size), m.corrected, state_grad.t());
      float end = add_written_gradients();
      if (reads) {
        float along = 0.0f;
        row_products(1, state.numel(), data(state), data(state_grad), &along);
        end += gates_.whole * along;
      }
      sum_grads_[static_cast<size_t>(m.size - 1)] += end;
    }
    if (reads) state_grad.addmm_(m.units.t(), m.scaled, passes ? gates_.whole : 0.0);
  }

  // From the gradient of the system's right sides: those of values, beta and `known`. Negates it,
  // because the gradients of the system and of `known` need it so.
  void split_side_gradients() {
    const ChunkMemory& m = *memory_;
    const int64_t width = spec_.value_dim, half = m.size * width;
    float *const sides = data(m.upper), *const scaled = data(m.scaled);
    row_products(m.size, width, sides, data(m.values), beta_grads_.data());
    sum_grads_.fill(0.0f);
    scale_rows(m.size, width, gates_.beta.data(), sides, data(m.values));
    scale_rows(m.size, width, factors_of([](size_t) { return -1.0f; }).data(), sides, sides);
    const auto read = factors_of([&](size_t i) { return gates_.beta[i] * gates_.grown[i]; });
    scale_rows(m.size, width, read.data(), sides, scaled);
    scale_rows(m.size, width, gates_.grown.data(), sides + half, scaled + half);
  }

  // From the gradients of the system and of the scores, both in `between`: those of the gates, and
  // in place those of `raw`. A sum of decays is in factors exp(sum); each gives itself times its
  // gradient.
  void split_product_gradients() {
    const ChunkMemory& m = *memory_;
    const auto size = static_cast<size_t>(m.size), half = size * size;
    float* system = data(m.between);
    const float *product = data(m.products), *pair = data(m.pairs);
    for (size_t i = 0; i < size; ++i) {
      const float beta = gates_.beta[i];
      float* const score = system + half;
      float beta_grad = 0.0f, sum_grad = 0.0f;
      for (size_t j = 0; j < i; ++j) {
        const float weighed = system[j] * beta;
        const float both = score[j] * product[half + j] + weighed * product[j];
        beta_grad += system[j] * product[j];
        sum_grad += both;
        sum_grads_[j] -= both;
        system[j] = weighed * pair[j];
        score[j] *= pair[j];
      }
      // The diagonal's part of the sums would be added and taken away again.
      score[i] *= pair[i];
      system[i] = 0.0f;
      std::fill(system + i + 1, system + size, 0.0f);
      std::fill(score + i + 1, score + size, 0.0f);
      beta_grads_[i] += beta_grad;
      sum_grads_[i] += sum_grad;
      system += size, product += size, pair += size;
    }
  }

  // Adds what keys and queries get from reading the state.
  void add_read_gradients() {
    const ChunkMemory& m = *memory_;
    std::array<float, 2 * kScanChunk> parts{};
    row_products(2 * m.size, spec_.key_dim, data(m.turned), data(m.units), parts.data());
    const auto size = static_cast<size_t>(m.size);
    for (size_t i = 0; i < size; ++i) sum_grads_[i] += parts[i] + parts[size + i];
    m.grads.add_(m.turned);
  }

  // Adds what keys get from writing the state. Returns the part of the sum at the chunk's end.
  float add_written_gradients() {
    const ChunkMemory& m = *memory_;
    std::array<float, kScanChunk> parts{};
    row_products(m.size, spec_.key_dim, data(m.turned), data(m.units), parts.data());
    add_scaled_rows(m.size, spec_.key_dim, gates_.left.data(), data(m.turned), data(m.grads));
    float end = 0.0f;
    for (size_t i = 0; i < static_cast<size_t>(m.size); ++i) {
      const float part = gates_.left[i] * parts[i];
      sum_grads_[i] -= part;
      end += part;
    }
    return end;
  }

  void write_gate_gradients(int64_t at, int64_t value_head, const DeltaGradients& out) const {
    const int64_t heads = spec_.value_heads;
    float *const beta = data(out.beta), *const decay = data(out.decay);
    float sum = 0.0f;
    for (int64_t i = memory_->size - 1; i >= 0; --i) {
      const int64_t place = (at + i) * heads + value_head;
      sum += sum_grads_[static_cast<size_t>(i)];
      decay[place] = sum;
      beta[place] = beta_grads_[static_cast<size_t>(i)];
    }
  }

  // From the gradients of the unit vectors: those of keys and queries.
  void write_unit_gradients(int64_t at, const at::Tensor& mixed) const {
    const ChunkMemory& m = *memory_;
    const int64_t width = spec_.key_dim;
    std::array<float, 2 * kScanChunk> along{}, factors{};
    row_products(2 * m.size, width, data(m.grads), data(m.units), along.data());
    for (size_t i = 0; i < static_cast<size_t>(2 * m.size); ++i) {
      along[i] /= -unit_scale(i) * unit_scale(i);
      factors[i] = factors_[i] * unit_scale(i);
    }
    add_scaled_rows(2 * m.size, width, along.data(), data(m.units), data(m.grads));
    scale_rows(2 * m.size, width, factors.data(), data(m.grads), data(m.grads));
    write(m.grads.narrow(0, 0, m.size), unit_rows(mixed, at, false));
    write(m.grads.narrow(0, m.size, m.size), unit_rows(mixed, at, true));
  }

  // Returns a factor for each row of a chunk.
  template <typename Factor>
  static std::array<float, kScanChunk> factors_of(const Factor& factor) {
    std::array<float, kScanChunk> all{};
    for (size_t i = 0; i < all.size(); ++i) all[i] = factor(i);
    return all;
  }

  const DeltaTerms& terms_;
  const DeltaSpec& spec_;
  const int64_t key_head_, times_;  // times: value heads of the key head
  at::Tensor states_;               // [times, key_dim, value_dim]; in backward, their gradients
  float* chunk_scratch_;
  std::optional<ChunkMemory> memory_;
  std::array<float, 2 * kScanChunk> factors_{};  // of the unit vectors
  Gates gates_{};
  std::array<float, kScanChunk> beta_grads_{}, sum_grads_{};
};

// Calls body(scan, document, first kept state) for each key head of each document, on all threads.
template <typename Body>
void for_heads(const DeltaTerms& terms, const Body& body) {
  const std::vector<int64_t>& starts = terms.document_starts;
  const int64_t documents = std::ssize(starts) - 1;
  std::vector<int64_t> states(starts.size(), 0);
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    states[d + 1] = states[d] + passed_states(starts[d + 1] - starts[d]);
  }
  const int64_t elements = HeadScan::scratch_elements(terms.spec);
  const at::Tensor scratch = at::empty({parallel_threads(), elements}, at::kFloat);
  parallel_for(0, terms.spec.key_heads * documents, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    float* const own = data(scratch) + parallel_thread() * elements;
    for (int64_t item = begin; item < end; ++item) {
      const auto document = static_cast<size_t>(item % documents);
      HeadScan scan(terms, item / documents, own);
      body(scan, starts[document], starts[document + 1], states[document]);
    }
  });
}

// Returns the states of a document's chunks but the first.
at::Tensor states_from(const at::Tensor& kept, int64_t first) {
  return kept.defined() ? kept.narrow(0, first, kept.size(0) - first) : kept;
}

}  // namespace

void delta_heads_forward(const DeltaTerms& terms, const at::Tensor& out, const at::Tensor& kept) {
  for_heads(terms, [&](HeadScan& scan, int64_t begin, int64_t end, int64_t first) {
    scan.forward(begin, end, out, states_from(kept, first));
  });
}

void delta_heads_backward(const DeltaTerms& terms, const at::Tensor& grad, const at::Tensor& kept,
                          const DeltaGradients& gradients) {
  for_heads(terms, [&](HeadScan& scan, int64_t begin, int64_t end, int64_t first) {
    scan.backward(begin, end, grad, states_from(kept, first), gradients);
  });
}

}  // namespace longshore
