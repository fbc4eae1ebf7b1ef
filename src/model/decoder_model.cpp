#include "model/decoder_model.h"

#include "base/errors.h"
#include "model/decoder_units.h"
#include "model/head_unit.h"

namespace longshore {

DecoderModel::DecoderModel(ArchSpec arch, ModelSpec spec)
    : arch_(std::move(arch)), spec_(std::move(spec)) {
  LONGSHORE_CHECK(static_cast<int64_t>(spec_.units.size()) == arch_.layer_count() + 2);
  units_.push_back(std::make_unique<EmbeddingUnit>(arch_));
  for (int64_t layer = 0; layer < arch_.layer_count(); ++layer) {
    units_.push_back(std::make_unique<DecoderBlock>(arch_, layer));
  }
  head_ = std::make_unique<HeadUnit>(arch_, !spec_.units.back().borrowed.empty());
}

DecoderModel::~DecoderModel() = default;

const Unit& DecoderModel::unit(UnitId id) const {
  return *units_.at(static_cast<size_t>(id.value));
}

}  // namespace longshore
