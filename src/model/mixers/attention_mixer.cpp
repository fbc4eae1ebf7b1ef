#include "model/mixers/mixer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "device/gpu_tensors.h"
#include "model/attention/gpu_attention.h"
#include "model/mixers/sequence_rows.h"
#include "model/ops/rope_table.h"
#include "model/parameters/block_carry.h"
#include "model/units/row_products.h"

namespace longshore {
namespace {

// The place of the first of the heads' results, behind attention's own.
constexpr size_t kHeadResults = 2;

// The attention of every decoder family.
class AttentionMixer final : public Mixer {
 public:
  AttentionMixer(const ArchSpec& arch, int64_t layer, const ModuleIndex& index)
      : Mixer(arch, layer, index), keeps_rotated_(keeps_rotated_heads(arch_)) {
    if (arch_.position == PositionKind::kRope && layer_.rotates) {
      rope_.emplace(rope_spec(), arch_.head_dim);
    }
  }
  UnitTraits traits(const UnitUse& use) const override {
    const RopeSpec& rope = rope_spec();
    UnitTraits traits{.documents = worst_documents(use)};
    traits.signature = signature_text(
        " attention", arch_.heads, arch_.kv_heads, arch_.head_dim, layer_.window, arch_.qk_norm,
        arch_.fused_qkv, arch_.position, layer_.rotates, arch_.query_growth_beta != 0.0,
        arch_.qk_norm_after_rope, arch_.qkv_clip != 0.0, arch_.score_cap != 0.0, arch_.sinks,
        arch_.output_gate, arch_.own_gate_matrix, arch_.value_norm, layer_.values_are_keys,
        layer_.keys_of >= 0, rope.rotary_dim(arch_.head_dim), rope.pairs,
        rope.attention_factor != 1.0, rope.scaling == RopeSpec::Scaling::kLong);
    if (arch_.score_cap == 0.0) {  // no kernel of a GPU caps scores
      traits.set_attention(
          {.heads = arch_.heads, .kv_heads = arch_.kv_heads, .head_dim = arch_.head_dim});
    }
    return traits;
  }
  // A window keeps what it sees. But if later layers read these keys, they do so after the rows of
  // a call have been written, and the window of an earlier row would be gone; so all are kept.
  std::vector<StateTensor> states(const StateUse& use) const override {
    if (layer_.keys_of >= 0) return {};
    const bool keeps_window = layer_.window > 0 && !arch_.gives_keys(number_);
    const int64_t positions = keeps_window ? std::min(layer_.window, use.longest) : use.longest;
    const std::vector<int64_t> shape = {positions, arch_.key_width()};
    return {{.name = "keys", .shape = shape, .type = use.compute},
            {.name = "values", .shape = shape, .type = use.compute}};
  }
  at::Tensor forward(UnitParameters parameters, const at::Tensor& x, const NormWeights& norm,
                     const MicroBatch& batch, Values values, KeysValues* shared) const override {
    std::vector<at::Tensor> qkv = query_key_value(parameters, x, norm, batch);
    qkv[0] = position_head(parameters, Module::kQueryNorm, qkv[0], batch);
    if (layer_.keys_of >= 0) {
      qkv.insert(qkv.end(), {shared->keys, shared->values});
    } else {
      if (arch_.value_norm) qkv[2] = plain_normed(qkv[2], NormKind::kRmsWide);
      qkv[1] = position_head(parameters, Module::kKeyNorm, qkv[1], batch);
      qkv[2] = clipped(qkv[2]);
    }
    if (keeps_rotated_) keep(qkv, layer_.keys_of >= 0 ? 1 : 3, batch.results, kHeadResults);
    if (layer_.keys_of < 0 && shared != nullptr) *shared = {qkv[1], qkv[2]};
    if (arch_.query_growth_beta != 0.0) qkv[0] = qkv[0] * query_growth(batch, qkv[0]);
    const AttentionShape shape{.heads = arch_.heads,
                               .kv_heads = arch_.kv_heads,
                               .head_dim = arch_.head_dim,
                               .window = layer_.window,
                               .scale = layer_.attention_scale,
                               .cap = arch_.score_cap};
    const at::Tensor sinks = index_.weight(parameters, Module::kSinks);
    at::Tensor mixed = batch.continued != nullptr
                           ? continued(qkv, shape, batch, sinks)
                           : attend(qkv[0], qkv[1], qkv[2], shape, batch.document_starts, sinks,
                                    attention_place(batch.results));
    if (arch_.output_gate) {
      const auto sigmoid = [](const at::Tensor& x) { return at::sigmoid(x); };
      mixed = mixed * by_element(qkv[3], sigmoid, batch);
    }
    qkv.clear();
    return products(parameters, mixed, {}, {Module::kOutput}, batch, values)[0];
  }

 private:
  // Extends the keys and values of each sequence and attends to them. A layer that reads those of
  // another finds the new ones there.
  at::Tensor continued(const std::vector<at::Tensor>& qkv, const AttentionShape& shape,
                       const MicroBatch& batch, const at::Tensor& sinks) const {
    const bool reads = layer_.keys_of >= 0;
    const std::vector<ContinuedRows> rows =
        continued_rows(sequence_rows(batch, reads ? layer_.keys_of : number_));
    if (reads) return attend_continued(qkv[0], {}, {}, shape, rows, sinks);
    return attend_continued(qkv[0], qkv[1], qkv[2], shape, rows, sinks);
  }
  // Returns function(x), which computes each element by itself. A continued row gets the bits that
  // it has alone.
  template <typename Function>
  static at::Tensor by_element(const at::Tensor& x, const Function& function,
                               const MicroBatch& batch) {
    const bool by_row = batch.continued != nullptr && !takes_gpu_form(x);
    return by_row ? fused::each_row(x, function) : function(x);
  }
  // Includes the lengths at which memory changes, such as the window (then one piece).
  std::vector<int64_t> worst_documents(const UnitUse& use) const {
    const int64_t longest = use.longest_document;
    std::vector<int64_t> lengths = {longest};
    if (layer_.window > 1 && layer_.window < longest) lengths.push_back(layer_.window);
    // Documents above the original length need one row of frequencies per position.
    const RopeSpec& rope = rope_spec();
    const int64_t first_long = rope.original_max_positions + 1;
    if (rope.scaling == RopeSpec::Scaling::kLong && first_long < longest) {
      lengths.push_back(first_long);
    }
    // This length slightly overfills the calls of FlashAttention's backward, so one more runs.
    const int64_t padded = kFlashPadding - 1;
    if (use.device == DeviceKind::kCuda && padded < longest) lengths.push_back(padded);
    lengths.push_back(1);
    return lengths;
  }
  const RopeSpec& rope_spec() const { return layer_.local_rope ? arch_.local_rope : arch_.rope; }
  // Returns query, key and value, and the gate of the output if the family has one. A layer that
  // reads another's keys and values has the query alone.
  std::vector<at::Tensor> query_key_value(UnitParameters parameters, const at::Tensor& x,
                                          const NormWeights& norm, const MicroBatch& batch) const {
    if (!arch_.fused_qkv) {
      std::vector<Module> modules{Module::kQuery};
      if (layer_.keys_of >= 0) return head_products(parameters, x, norm, modules, batch);
      modules.push_back(Module::kKey);
      if (!layer_.values_are_keys) modules.push_back(Module::kValue);
      if (arch_.own_gate_matrix) modules.push_back(Module::kAttentionGate);
      std::vector<at::Tensor> qkv = head_products(parameters, x, norm, modules, batch);
      if (layer_.values_are_keys) qkv.insert(qkv.begin() + 2, qkv[1]);
      if (arch_.output_gate && !arch_.own_gate_matrix) {
        const std::vector<at::Tensor> both =
            qkv[0].view({x.size(0), arch_.heads, 2, arch_.head_dim}).unbind(2);
        qkv[0] = both[0].reshape({x.size(0), arch_.query_width()});
        qkv.push_back(both[1].reshape({x.size(0), arch_.query_width()}));
      }
      return qkv;
    }
    const at::Tensor fused = head_products(parameters, x, norm, {Module::kQkv}, batch)[0];
    return fused.split_with_sizes({arch_.query_width(), arch_.key_width(), arch_.key_width()}, 1);
  }
  // Returns the products of queries, keys and values; without their values where those or what
  // follows from them are kept.
  std::vector<at::Tensor> head_products(UnitParameters parameters, const at::Tensor& x,
                                        const NormWeights& norm, const std::vector<Module>& modules,
                                        const MicroBatch& batch) const {
    std::vector<at::Tensor> heads =
        products(parameters, x, norm, modules, batch, values_beside(batch.results, kHeadResults));
    if (!keeps_rotated_) keep(heads, heads.size(), batch.results, kHeadResults);
    return heads;
  }
  at::Tensor position_head(UnitParameters parameters, Module head_norm, const at::Tensor& x,
                           const MicroBatch& batch) const {
    at::Tensor heads =
        clipped(arch_.qk_norm_after_rope ? x : head_normed(parameters, head_norm, x));
    if (rope_) {
      const Rotation rotation =
          rope_->rotation(batch.document_starts, text_lengths(batch), x.device());
      const bool read =
          !keeps_rotated_ || values_beside(batch.results, kHeadResults) == Values::kComputed;
      heads = rotate_heads(heads, batch.positions, rotation, arch_.head_dim, read);
    }
    return arch_.qk_norm_after_rope ? head_normed(parameters, head_norm, heads) : heads;
  }
  // Returns x itself if the family lacks this norm.
  at::Tensor head_normed(UnitParameters parameters, Module module, const at::Tensor& x) const {
    if (arch_.qk_norm == QueryKeyNorm::kHeadPlain) {
      return plain_normed(x, NormKind::kRms);
    }
    const NormWeights norm = index_.norm(parameters, module, arch_.norm, arch_.norm_eps);
    return norm.weight.defined() ? normalise(x, norm.weight, norm.bias, norm.kind, norm.eps) : x;
  }
  // Returns x with each head divided by its root mean square.
  at::Tensor plain_normed(const at::Tensor& x, NormKind kind) const {
    const at::Tensor ones = at::ones({arch_.head_dim}, x.options().requires_grad(false));
    return normalise(x, ones, {}, kind, arch_.norm_eps);
  }
  // Returns x with its values limited, or x itself if the family does not clip.
  at::Tensor clipped(const at::Tensor& x) const {
    return arch_.qkv_clip == 0.0 ? x : at::clamp(x, -arch_.qkv_clip, arch_.qkv_clip);
  }
  // Returns the factor of the queries, [T, 1].
  at::Tensor query_growth(const MicroBatch& batch, const at::Tensor& like) const {
    const at::Tensor turns = at::floor(batch.positions.to(at::kFloat) /
                                       static_cast<double>(arch_.query_growth_positions));
    const auto log = [](const at::Tensor& x) { return at::log(x); };
    const at::Tensor growth = by_element(turns.add(1.0).unsqueeze(1), log, batch);
    return growth.mul_(arch_.query_growth_beta).add_(1.0).to(like.scalar_type());
  }

  bool keeps_rotated_;
  std::optional<RopeTable> rope_;  // only in layers that rotate
};

}  // namespace

std::unique_ptr<Mixer> make_attention_mixer(const ArchSpec& arch, int64_t layer,
                                            const ModuleIndex& index) {
  return std::make_unique<AttentionMixer>(arch, layer, index);
}

}  // namespace longshore
