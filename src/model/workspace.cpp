#include "model/workspace.h"

#include <algorithm>

#include "base/errors.h"
#include "model/differentiable_ops.h"
#include "model/document_attention.h"
#include "model/head_unit.h"
#include "model/model_spec.h"

namespace longshore {
namespace {

// What LibTorch takes in tensors too small to be worth a line here: row means, casts of norm
// weights, indices, scalars.
constexpr Bytes kSmallTensors = 32 * kKiB;

// Elements of a product that are added to fp32 sums at once: as RunningSum::add_product has it.
constexpr int64_t kSumPieceElements = int64_t{1} << 18;

// What oneDNN takes for a product in bf16: copies of blocks, for each thread. Measured on AVX-512
// with bf16 over products of 1 .. 16384 rows and up to 14336 columns: at most 1.65 MiB, and less
// for few rows. fp32 products go through MKL, which has memory of its own.
Bytes matmul_scratch(const WorkspaceQuery& query, int64_t rows) {
  if (query.compute == DType::kF32) return 0;
  const Bytes of_rows = 192 * kKiB + 1280 * std::min<int64_t>(rows, kMiB);
  return query.threads * std::min(7 * kMiB / 4, of_rows);
}

// Bytes that live, and the most that ever did. Follows a piece of code step by step.
class Timeline {
 public:
  void take(Bytes bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void give(Bytes bytes) { live_ -= bytes; }
  // Lives for a moment on top of what is there.
  void moment(Bytes bytes) { peak_ = std::max(peak_, live_ + bytes); }
  Bytes live() const { return live_; }
  Bytes peak() const { return peak_; }

 private:
  Bytes live_ = 0;
  Bytes peak_ = 0;
};

Bytes tensor_bytes(int64_t elements, Bytes element_bytes) {
  return align_up(elements * element_bytes, 64);
}

// Values of a piece of rows.
Bytes piece_bytes(int64_t row_count, int64_t columns, Bytes element_bytes) {
  return tensor_bytes(std::min(row_count, piece_rows(columns)) * columns, element_bytes);
}

// normalise_backward without its result.
Bytes norm_backward_bytes(DType compute, int64_t row_count, int64_t columns) {
  const Bytes piece = piece_bytes(row_count, columns, 4);
  const Bytes row_values = piece_bytes(row_count, columns, 4) / columns + 64;
  return piece * (compute == DType::kF32 ? 3 : 4) + 5 * row_values + 3 * tensor_bytes(columns, 4);
}

// Bytes of the tensors of a block, and of what each op needs for a moment.
class BlockSizes {
 public:
  BlockSizes(const ArchSpec& arch, const UnitSpec& unit, int64_t layer, const WorkspaceQuery& query)
      : arch_(arch), query_(query), window_(arch.layers.at(static_cast<size_t>(layer)).window) {
    for (const ModuleParameter& parameter : block_parameters(arch, "", layer)) {
      const ParamSpec& spec = unit.parameters.at(parameter_gradients_.size());
      parameter_gradients_.push_back(
          {parameter.module, spec.frozen ? 0 : tensor_bytes(spec.elements(), width())});
    }
  }

  Bytes width() const { return width_of(query_.compute); }
  bool bf16() const { return query_.compute != DType::kF32; }
  Bytes rows(int64_t columns) const { return tensor_bytes(query_.positions * columns, width()); }
  Bytes hidden() const { return rows(arch_.hidden); }
  Bytes query() const { return rows(arch_.query_width()); }
  Bytes key() const { return rows(arch_.key_width()); }
  Bytes inner() const { return rows(arch_.intermediate); }
  // One for each document, each with its own padding.
  Bytes sums() const { return query_.positions * (arch_.heads * 4 + 64); }
  // Of one matrix product.
  Bytes product() const { return matmul_scratch(query_, query_.positions); }

  // Gradients of the parameters of some parts.
  Bytes gradients(std::initializer_list<Module> modules) const {
    Bytes sum = 0;
    for (const auto& [module, bytes] : parameter_gradients_) {
      if (std::find(modules.begin(), modules.end(), module) != modules.end()) sum += bytes;
    }
    return sum;
  }

  Bytes norm_forward(int64_t row_count, int64_t columns, NormKind kind) const {
    return piece_bytes(row_count, columns, 4) * (bf16() || kind == NormKind::kLayer ? 2 : 1) +
           2 * (piece_bytes(row_count, columns, 4) / columns + 64) + 2 * tensor_bytes(columns, 4);
  }
  Bytes norm_backward(int64_t row_count, int64_t columns) const {
    return norm_backward_bytes(query_.compute, row_count, columns);
  }
  Bytes rotation(int64_t columns) const {
    return piece_bytes(query_.positions, columns, width()) / 2 +
           3 * tensor_bytes(std::min(query_.positions, piece_rows(columns)) * arch_.head_dim / 2,
                            4);
  }
  Bytes activation_backward() const {
    return piece_bytes(query_.positions, arch_.intermediate, width()) * (arch_.gated ? 2 : 0);
  }

  Bytes attention_forward() const {
    const Bytes out = tensor_bytes(piece_queries() * arch_.query_width(), width());
    return out + mask() + kernel_rows() * (kernel_keys() + 2 + arch_.head_dim) * 4 * threads() +
           reduced_scratch(1);
  }
  Bytes attention_backward() const {
    const int64_t group = arch_.heads / arch_.kv_heads;
    const Bytes grad_query = tensor_bytes(piece_queries() * arch_.query_width(), width());
    const Bytes grad_key = tensor_bytes(piece_keys() * arch_.query_width(), width());
    const bool copies_grad = group > 1 && arch_.kv_heads > 1;
    Bytes sum = grad_query * (copies_grad ? 2 : 1) + 2 * grad_key + mask();
    const bool direct = group == 1 && window_ == 0;
    if (bf16() && !direct) sum += 2 * tensor_bytes(query_.longest_document * arch_.key_width(), 4);
    return sum + kernel_rows() * kernel_keys() * 2 * 4 * threads() + reduced_scratch(2);
  }

 private:
  int64_t threads() const { return query_.threads; }
  bool sliding() const { return window_ > 0 && window_ < query_.longest_document; }
  int64_t piece_queries() const {
    return sliding() ? std::min(kWindowQueries, query_.longest_document) : query_.longest_document;
  }
  int64_t piece_keys() const {
    return sliding() ? std::min(kWindowQueries + window_ - 1, query_.longest_document)
                     : query_.longest_document;
  }
  // The kernel's blocks: up to 256 queries by 512 keys for each thread.
  int64_t kernel_rows() const {
    const int64_t queries = piece_queries();
    return std::min<int64_t>(queries, queries >= 768 ? 256 : queries >= 192 ? 64 : 32);
  }
  int64_t kernel_keys() const { return std::min<int64_t>(piece_keys(), 512); }
  Bytes reduced_scratch(int64_t copies) const {
    // The last part: what the products inside take.
    return bf16() ? (kernel_rows() * kernel_keys() * 2 * copies + 384 * kKiB) * threads() : 0;
  }
  Bytes mask() const {
    return sliding() ? tensor_bytes(piece_queries() * piece_keys(), width() + 1) : 0;
  }

  const ArchSpec& arch_;
  const WorkspaceQuery& query_;
  int64_t window_;
  std::vector<std::pair<Module, Bytes>> parameter_gradients_;
};

// The steps of DecoderBlock::forward. Returns what the graph keeps, the output included.
void block_forward(const ArchSpec& arch, const BlockSizes& sizes, int64_t positions, bool graph,
                   Timeline& timeline) {
  const Bytes hidden = sizes.hidden(), query = sizes.query(), key = sizes.key();
  timeline.take(hidden);  // normed input
  timeline.moment(sizes.norm_forward(positions, arch.hidden, arch.norm));
  timeline.take(query + 2 * key);
  timeline.moment(sizes.product());
  for (const bool of_query : {true, false}) {
    const Bytes bytes = of_query ? query : key;
    const int64_t columns = of_query ? arch.query_width() : arch.key_width();
    if (arch.qk_norm) {
      timeline.take(bytes);
      timeline.moment(
          sizes.norm_forward(positions * columns / arch.head_dim, arch.head_dim, NormKind::kRms));
      if (!graph) timeline.give(bytes);
    }
    if (arch.position == PositionKind::kRope) {
      timeline.moment(bytes + sizes.rotation(columns));
    }
  }
  timeline.take(query + sizes.sums());  // mixed
  timeline.moment(sizes.attention_forward());
  if (!graph) timeline.give(query + 2 * key + sizes.sums());
  timeline.take(hidden);  // h
  timeline.moment(sizes.product());
  if (!graph) timeline.give(hidden + query);
  timeline.take(hidden);  // normed h
  timeline.moment(sizes.norm_forward(positions, arch.hidden, arch.norm));
  timeline.take(sizes.inner() * (arch.gated ? 2 : 1));
  timeline.moment(sizes.inner() + hidden + sizes.product());  // activated, and the output
  timeline.take(hidden);
}

// The steps of autograd through what block_forward has left, last op first.
void block_backward(const ArchSpec& arch, const BlockSizes& sizes, int64_t positions,
                    Timeline& timeline) {
  const Bytes hidden = sizes.hidden(), query = sizes.query(), key = sizes.key();
  const Bytes inner = sizes.inner();
  timeline.take(sizes.gradients({Module::kDown}));
  timeline.moment(inner + std::max(sizes.activation_backward(), sizes.product()));
  timeline.take(hidden + sizes.gradients({Module::kGate, Module::kUp}));
  timeline.moment(sizes.product());
  timeline.give(inner * (arch.gated ? 2 : 1) + hidden);  // inner gradients, normed h
  timeline.take(hidden);                                 // gradient of h through the norm
  timeline.moment(sizes.norm_backward(positions, arch.hidden));
  timeline.take(sizes.gradients({Module::kMlpNorm}));
  timeline.give(2 * hidden);  // h, gradient of normed h
  timeline.take(hidden);      // sum of both gradients of h
  timeline.give(hidden);
  timeline.take(query + sizes.gradients({Module::kOutput}));
  timeline.moment(sizes.product());
  timeline.take(query + 2 * key);  // gradients of query, key, value
  timeline.moment(sizes.attention_backward());
  timeline.give(query + sizes.sums() + 2 * query + 2 * key);  // grad, mixed, q, k, v
  if (arch.fused_qkv) {
    timeline.moment(query + 2 * key);
  } else {
    timeline.moment(std::max(query, key) + sizes.rotation(arch.query_width()));
  }
  if (arch.qk_norm) {
    timeline.moment(query + sizes.norm_backward(positions * arch.heads, arch.head_dim));
    timeline.take(sizes.gradients({Module::kQueryNorm, Module::kKeyNorm}));
    timeline.give(query + key);
  }
  timeline.take(hidden +
                sizes.gradients({Module::kQuery, Module::kKey, Module::kValue, Module::kQkv}));
  timeline.moment(sizes.product());
  timeline.give(query + 2 * key + hidden);  // their gradients, normed input
  timeline.take(hidden);
  timeline.moment(sizes.norm_backward(positions, arch.hidden));
}

UnitWorkspace block_workspace(const ArchSpec& arch, const UnitSpec& unit, int64_t layer,
                              const WorkspaceQuery& query) {
  const BlockSizes sizes(arch, unit, layer, query);
  Timeline forward, backward;
  block_forward(arch, sizes, query.positions, false, forward);
  block_forward(arch, sizes, query.positions, true, backward);
  const Bytes saved = backward.live() + kSmallTensors;
  block_backward(arch, sizes, query.positions, backward);
  return {.forward = forward.peak() + kSmallTensors,
          .backward = backward.peak() + kSmallTensors,
          .saved = saved};
}

UnitWorkspace embedding_workspace(const ArchSpec& arch, const WorkspaceQuery& query) {
  const Bytes out = tensor_bytes(query.positions * arch.hidden, width_of(query.compute));
  const int64_t copies = arch.position == PositionKind::kLearned ? 2 : 1;
  return {.forward = out * copies + kSmallTensors, .backward = kSmallTensors, .saved = 0};
}

// The steps of HeadUnit::run for one chunk; the last chunk is no larger.
UnitWorkspace head_workspace(const ArchSpec& arch, const WorkspaceQuery& query) {
  const int64_t chunk = std::min(head_chunk_positions(arch.vocabulary), query.positions);
  const Bytes width = width_of(query.compute);
  const Bytes rows = tensor_bytes(chunk * arch.hidden, width);
  const Bytes logits = tensor_bytes(chunk * arch.vocabulary, 4);
  const Bytes rounded = width == 4 ? 0 : tensor_bytes(chunk * arch.vocabulary, width);
  const Bytes norm = norm_backward_bytes(query.compute, chunk, arch.hidden);
  // Trained positions, and how they are found.
  const Bytes indices = 2 * tensor_bytes(query.positions, 8) +
                        2 * tensor_bytes(query.positions, 1) + 6 * tensor_bytes(chunk, 8) +
                        kSmallTensors;
  // The product's result is in the compute dtype: fp32 logits, or those rounded to bf16.
  const Bytes product = (width == 4 ? logits : rounded) + matmul_scratch(query, chunk);
  const Bytes loss = 2 * rows + std::max({norm, product, logits + rounded});
  // The gradient of the head's matrix, from the gradient by the logits, a piece at a time.
  const int64_t sum_rows = std::min(arch.vocabulary, kSumPieceElements / arch.hidden + 1);
  const Bytes piece =
      width == 4 ? 0
                 : tensor_bytes(sum_rows * arch.hidden, width) + matmul_scratch(query, sum_rows);
  const Bytes gradients = 3 * rows + std::max({norm + rows, product, rounded + piece});
  const Bytes grad_in = tensor_bytes(query.positions * arch.hidden, width);
  return {.forward = indices + loss,
          .backward = indices + grad_in + std::max(loss, gradients),
          .saved = 0};
}

}  // namespace

UnitWorkspace decoder_workspace(const ArchSpec& arch, const ModelSpec& spec, UnitId id,
                                const WorkspaceQuery& query) {
  LONGSHORE_CHECK(query.positions >= 1 && query.longest_document >= 1 && query.threads >= 1);
  const auto last = static_cast<int32_t>(spec.units.size()) - 1;
  if (id.value == 0) return embedding_workspace(arch, query);
  if (id.value == last) return head_workspace(arch, query);
  return block_workspace(arch, spec.unit(id), id.value - 1, query);
}

}  // namespace longshore
