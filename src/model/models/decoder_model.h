// DecoderModel: the Model of every decoder family: embedding, blocks and head, each whole or cut.
// The run owns it; it is immutable after construction.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/parameters/unit_cut.h"
#include "model/units/unit.h"
#include "shard/unit_spec.h"

namespace longshore {

class DecoderModel : public Model {
 public:
  // `whole` comes from make_model_spec(arch, ...) with frozen parameters marked; spec() is the cut
  // version of it.
  DecoderModel(ArchSpec arch, const ModelSpec& whole, const UnitCut& cut = {});
  ~DecoderModel() override;

  const ArchSpec& arch() const { return arch_; }
  const ModelSpec& spec() const override { return spec_; }
  const Unit& unit(UnitId id) const override;
  const LossUnit& loss_unit() const override { return *head_; }
  RouterShape routers() const override;
  std::optional<std::vector<LayerState>> layer_states(const StateUse& use) const override;
  std::optional<int64_t> restart_length() const override { return arch_.restart_length(); }
  std::map<int64_t, int64_t> tokens_read_as() const override { return arch_.read_as; }

 private:
  ArchSpec arch_;
  ModelSpec spec_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::unique_ptr<LossUnit> head_;
};

}  // namespace longshore
