// DecoderModel: the Model of every decoder family: the embedding, the blocks, the head, each whole
// or cut.
// Owned by the run; immutable after construction.
#pragma once

#include <memory>
#include <vector>

#include "model/arch_spec.h"
#include "model/unit.h"
#include "model/unit_cut.h"
#include "shard/unit_spec.h"

namespace longshore {

class DecoderModel : public Model {
 public:
  // `whole` comes from make_model_spec(arch, ...), frozen parameters marked; the model's own spec
  // is that, cut.
  DecoderModel(ArchSpec arch, const ModelSpec& whole, const UnitCut& cut = {});
  ~DecoderModel() override;

  const ArchSpec& arch() const { return arch_; }
  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override { return *head_; }
  RouterShape routers() const override;

 private:
  ArchSpec arch_;
  ModelSpec spec_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::unique_ptr<LossUnit> head_;
};

}  // namespace longshore
