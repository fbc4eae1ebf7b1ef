#include "model/models/decoder_model.h"

#include <algorithm>
#include <iterator>

#include "base/errors.h"
#include "model/decoder/decoder_units.h"
#include "model/decoder/head_unit.h"
#include "model/decoder/sparse_units.h"

namespace longshore {
namespace {

// Returns a model's parameters as the files hold them.
std::vector<FileTensor> tensors_of(const ModelSpec& model) {
  std::vector<FileTensor> tensors;
  for (const ParamSpec& parameter : model.whole_parameters()) {
    tensors.push_back({.name = parameter.name, .shape = parameter.shape});
  }
  return tensors;
}

std::unique_ptr<Unit> make_block(const ArchSpec& arch, int64_t layer) {
  const LayerSpec& spec = arch.layers[static_cast<size_t>(layer)];
  if (!spec.sparse) return std::make_unique<DecoderBlock>(arch, layer);
  if (spec.has_mixer) return std::make_unique<SparseBlock>(arch, layer);
  return std::make_unique<ExpertsUnit>(arch, layer, all_experts(arch));
}

}  // namespace

DecoderModel::DecoderModel(ArchSpec arch, const ModelSpec& whole, const UnitCut& cut)
    : arch_(spelled_as(std::move(arch), tensors_of(whole))), spec_(cut_units(arch_, whole, cut)) {
  using Kind = DecoderPart::Kind;
  for (const DecoderPart& part : decoder_parts(arch_, cut)) {
    switch (part.kind) {
      case Kind::kEmbedding:
        units_.push_back(std::make_unique<EmbeddingUnit>(arch_));
        break;
      case Kind::kBlock:
        units_.push_back(make_block(arch_, part.layer));
        break;
      case Kind::kExperts:
        units_.push_back(std::make_unique<ExpertsUnit>(arch_, part.layer, part.rows));
        break;
      case Kind::kAttention:
        units_.push_back(std::make_unique<DecoderBlock>(arch_, part.layer, BlockPart::kAttention));
        break;
      case Kind::kMlp:
        units_.push_back(std::make_unique<DecoderBlock>(arch_, part.layer, BlockPart::kMlp));
        break;
      case Kind::kInputTable:
        units_.push_back(make_input_table(arch_, part.rows));
        break;
      case Kind::kInputs:
        units_.push_back(make_layer_inputs(arch_));
        break;
      case Kind::kEmbeddingPiece:
        units_.push_back(make_embedding_piece(arch_, part.rows));
        break;
      case Kind::kHeadPiece:
        if (part.rows.ends()) {
          head_ = make_head_loss(arch_, part.rows);
        } else {
          units_.push_back(make_head_piece(arch_, part.rows));
        }
        break;
      case Kind::kHead:
        head_ = std::make_unique<HeadUnit>(arch_, !spec_.units.back().tied.empty());
        break;
    }
  }
}

DecoderModel::~DecoderModel() = default;

RouterShape DecoderModel::routers() const {
  const MoeSpec& moe = arch_.moe;
  if (moe.experts == 0) return {};
  return {.layers = arch_.layer_count(),
          .experts = moe.experts,
          .top_k = moe.top_k,
          .balance = moe.balance,
          .watched = moe.watched,
          .correction_rate = moe.correction_rate};
}

std::optional<std::vector<LayerState>> DecoderModel::layer_states(const StateUse& use) const {
  std::vector<LayerState> layers;
  for (const std::unique_ptr<Unit>& unit : units_)
    std::ranges::move(unit->layer_states(use), std::back_inserter(layers));
  return layers;
}

const Unit& DecoderModel::unit(UnitId id) const {
  return *units_.at(static_cast<size_t>(id.value));
}

}  // namespace longshore
