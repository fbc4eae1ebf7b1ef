// ParameterViews: a model's parameters as tensors over the slots that hold them. Each unit has one
// StorageImpl, which bind() points at the leased slot. Tensors saved by autograd share it, so a
// graph made over one slot runs backward over another. Owned by the engine, used by compute.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "model/unit.h"
#include "offload/staging/stage_ring.h"
#include "shard/flat_layout.h"

namespace longshore {

class ParameterViews {
 public:
  ParameterViews(const Model& model, const std::vector<FlatLayout>& layouts, DType compute,
                 at::Device device = at::kCPU);

  at::Device device() const { return device_; }
  // Points the unit's tensors at the leased slot. They are valid while the lease lives.
  void bind(const UnitLease& lease);
  // Returns autograd leaves: owned parameters, then tied ones. Trainable ones require a gradient.
  UnitParameters leaves(UnitId unit) const { return leaves_.at(static_cast<size_t>(unit.value)); }

 private:
  at::Device device_;                            // the device of the slots
  std::vector<c10::Storage> storages_;           // by unit
  std::vector<std::vector<at::Tensor>> leaves_;  // by unit
};

// Returns the LibTorch type of a compute dtype.
at::ScalarType scalar_type_of(DType dtype);

}  // namespace longshore
