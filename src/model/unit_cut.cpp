#include "model/unit_cut.h"

#include "base/errors.h"
#include "model/model_spec.h"

namespace longshore {
namespace {

using Kind = DecoderPart::Kind;

constexpr const char* kAttentionSuffix = ".attention";
constexpr const char* kMlpSuffix = ".mlp";

std::string block_name(int64_t layer) {
  return "block." + std::to_string(layer);
}

// A part that is no whole unit: which of the unit's parameters it has.
struct Share {
  size_t begin = 0, end = 0;
  std::string suffix;
};

Share share_of(const ArchSpec& arch, const UnitSpec& unit, const DecoderPart& part) {
  const size_t all = unit.parameters.size();
  if (part.kind != Kind::kAttention && part.kind != Kind::kMlp) return {0, all, ""};
  const size_t border = block_parameters(arch, {}, part.layer, BlockPart::kAttention).size();
  if (part.kind == Kind::kAttention) return {0, border, kAttentionSuffix};
  return {border, all, kMlpSuffix};
}

}  // namespace

UnitCut cut_for(const UnitPolicy& policy, const ArchSpec& arch) {
  UnitCut cut;
  std::set<std::string> named;
  for (const std::vector<std::string>& group : policy.groups) {
    named.insert(group.begin(), group.end());
  }
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    const std::string name = block_name(layer);
    const bool by_hand =
        named.contains(name + kAttentionSuffix) || named.contains(name + kMlpSuffix);
    if (by_hand || policy.kind == UnitPolicy::Kind::kHalf) cut.halves.insert(layer);
  }
  return cut;
}

std::vector<DecoderPart> decoder_parts(const ArchSpec& arch, const UnitCut& cut) {
  std::vector<DecoderPart> parts = {{.kind = Kind::kEmbedding}};
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    if (!cut.halves.contains(layer)) {
      parts.push_back({Kind::kBlock, layer});
      continue;
    }
    parts.push_back({Kind::kAttention, layer});
    parts.push_back({Kind::kMlp, layer});
  }
  parts.push_back({.kind = Kind::kHead});
  return parts;
}

ModelSpec cut_units(const ArchSpec& arch, const ModelSpec& whole, const UnitCut& cut) {
  LONGSHORE_CHECK(static_cast<int64_t>(whole.units.size()) == arch.layer_count() + 2);
  ModelSpec model;
  for (const DecoderPart& part : decoder_parts(arch, cut)) {
    const size_t from = part.kind == Kind::kEmbedding ? 0
                        : part.kind == Kind::kHead    ? whole.units.size() - 1
                                                      : static_cast<size_t>(part.layer) + 1;
    UnitSpec unit = whole.units[from];
    const Share share = share_of(arch, unit, part);
    unit.id = UnitId(static_cast<int32_t>(model.units.size()));
    unit.name += share.suffix;
    unit.parameters.assign(whole.units[from].parameters.begin() + static_cast<int64_t>(share.begin),
                           whole.units[from].parameters.begin() + static_cast<int64_t>(share.end));
    // Nothing is borrowed but of the embedding, which is the first unit of every cut.
    for (const ParamRef ref : unit.borrowed) LONGSHORE_CHECK(ref.unit == UnitId(0)) << unit.name;
    model.units.push_back(std::move(unit));
  }
  validate_model_spec(model);
  return model;
}

}  // namespace longshore
