#include "model/models/packed_model.h"

#include <algorithm>

#include "device/gpu_tensors.h"
#include "shard/storage_type.h"

namespace longshore {
namespace {

// Kernels read and write lots of 16 bytes.
constexpr int64_t kLotElements = 8;

// The experts of a stacked parameter are packed one by one, each as bitsandbytes packs a linear
// layer: so any group of experts can be a unit, and files with single experts give the same values.
// transformers 5.23 leaves fused experts in bf16. bitsandbytes' replace_parameter_4bit packs such a
// tensor as a whole, in blocks of 64 in its order in memory: these have the same codes if an
// expert's values are a multiple of 64. Its scales are fp32 unless compress_statistics asks for
// codes, and then their mean and groups are those of all experts.
bool is_packed(const ParamSpec& parameter, const Packing& packing) {
  if (packing.only && !packing.only->contains(parameter.name)) return false;
  if (!parameter.frozen || parameter.adapter || parameter.routes) return false;
  const std::vector<int64_t>& shape = parameter.shape;
  if (parameter.stacked) return shape.size() == 3 && shape[1] * shape[2] % kLotElements == 0;
  const bool for_experts = packing.format == PackedFormat::kMxfp4;
  return !for_experts && parameter.whole_rows == 0 && shape.size() == 2;
}

// A unit whose matrices are packed: it knows their forms, and its products unpack them.
class PackedUnit : public Unit {
 public:
  PackedUnit(const Unit* unit, const UnitSpec& spec, const Packing& packing)
      : unit_(unit), format_(packing.format) {
    for (const ParamSpec& parameter : spec.parameters) {
      forms_.push_back(form_of(parameter, scalar_type_of(packing.compute)));
    }
  }

  UnitTraits traits(const UnitUse& use) const override {
    UnitTraits traits = unit_->traits(use);
    if (traits.signature.empty()) return traits;
    traits.signature = std::string(name_of(format_)) + " " + traits.signature;
    return traits;
  }
  Carry forward(UnitParameters parameters, const Carry& in,
                const MicroBatch& batch) const override {
    return unit_->forward(parameters.stored_as(forms_), in, batch);
  }
  bool has_own_backward() const override { return unit_->has_own_backward(); }
  Carry backward(UnitParameters parameters, const Carry& in, const MicroBatch& batch,
                 const Carry& grad_out, GradientSink& sink) const override {
    return unit_->backward(parameters.stored_as(forms_), in, batch, grad_out, sink);
  }

 private:
  static SharedForm form_of(const ParamSpec& parameter, at::ScalarType type) {
    if (!parameter.packed) return nullptr;
    return std::make_shared<PackedForm>(packing_of(*parameter.packed), type, parameter.shape);
  }

  const Unit* unit_;
  PackedFormat format_;
  // Those of the owned parameters. Tied ones are never packed: they belong to the embedding.
  std::vector<SharedForm> forms_;
};

}  // namespace

ModelSpec pack_model_spec(const ModelSpec& model, const Packing& packing) {
  ModelSpec spec = model;
  // The first unit is the embedding and the last the head.
  for (size_t u = 1; u + 1 < spec.units.size(); ++u) {
    if (!spec.units[u].backward_reads_parameters) continue;  // a piece of the embedding
    for (ParamSpec& parameter : spec.units[u].parameters) {
      if (is_packed(parameter, packing)) parameter.packed = storage_of(packing.format);
    }
  }
  return spec;
}

PackedModel::PackedModel(const Model* model, const Packing& packing)
    : model_(model), spec_(pack_model_spec(model->spec(), packing)) {
  units_.resize(spec_.units.size());
  for (size_t u = 0; u + 1 < spec_.units.size(); ++u) {
    const UnitSpec& unit = spec_.units[u];
    const bool packs = std::ranges::any_of(
        unit.parameters, [](const ParamSpec& parameter) { return parameter.packed.has_value(); });
    if (packs) units_[u] = std::make_unique<PackedUnit>(&model_->unit(unit.id), unit, packing);
  }
}

PackedModel::~PackedModel() = default;

const Unit& PackedModel::unit(UnitId id) const {
  const std::unique_ptr<Unit>& packs = units_.at(static_cast<size_t>(id.value));
  return packs ? *packs : model_->unit(id);
}

}  // namespace longshore
