// Mixer: the part of a decoder's layer that mixes the positions of a document. The block owns it
// and adds the norms around it and the residual; it is immutable. make_mixer chooses it by
// LayerSpec::mixer. In a batch that continues sequences (MicroBatch::continued) it reads and
// extends what it keeps of each, row by row ([Note: one way to continue]). Compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device_kind.h"
#include "model/families/arch_spec.h"
#include "model/units/differentiable_ops.h"
#include "model/units/module_index.h"
#include "model/units/unit.h"

namespace longshore {

// The keys and values of a layer, [T, width] each, as attention reads them: normed and rotated.
struct KeysValues {
  at::Tensor keys, values;
};

class Mixer {
 public:
  // `arch` has the sizes of the layer (ArchSpec::of_layer), whose number is `layer`.
  Mixer(const ArchSpec& arch, int64_t layer, const ModuleIndex& index)
      : arch_(arch),
        number_(layer),
        layer_(arch.layers.at(static_cast<size_t>(layer))),
        index_(index) {}
  virtual ~Mixer() = default;
  // Returns the mixer's part of its unit's traits.
  virtual UnitTraits traits(const UnitUse& use) const = 0;
  // Returns what the layer keeps of a sequence that is decoded.
  virtual std::vector<StateTensor> states(const StateUse& use) const = 0;
  // Returns the mixer's output, [T, hidden], for the unit's input x, which `norm` normalises first.
  // Its last operation is a product, which `values` may leave uncomputed. In a layer that shares
  // keys and values, `shared` are those that it reads (LayerSpec::keys_of), or becomes its own; in
  // other layers, which release theirs as early as they can, it is null.
  virtual at::Tensor forward(UnitParameters parameters, const at::Tensor& x,
                             const NormWeights& norm, const MicroBatch& batch, Values values,
                             KeysValues* shared) const = 0;

 protected:
  // Returns norm(x) times the matrix of each module.
  std::vector<at::Tensor> products(UnitParameters parameters, const at::Tensor& x,
                                   const NormWeights& norm, const std::vector<Module>& modules,
                                   const MicroBatch& batch,
                                   Values values = Values::kComputed) const;

  ArchSpec arch_;  // with the sizes of the layer
  int64_t number_;
  LayerSpec layer_;
  ModuleIndex index_;
};

// Returns where attention stores the results that backward reuses, the first two of its unit.
AttentionPlace attention_place(const UnitResults& results);
// Returns the place of a result; undefined if the plan does not keep it.
at::Tensor place_of(const UnitResults& results, size_t result);
// Returns whether a product's values are read that a plan may keep in that place.
Values values_beside(const UnitResults& results, size_t result);
// Makes the first `count` tensors the unit's results from `first` on, if the plan keeps them
// (kept_result).
void keep(std::vector<at::Tensor>& tensors, size_t count, const UnitResults& results, size_t first);

// Returns the layer's mixer. `index` is that of the unit's parameters.
std::unique_ptr<Mixer> make_mixer(const ArchSpec& arch, int64_t layer, const ModuleIndex& index);

// Each makes one kind of mixer and is defined in its file, <name>_mixer.cpp.
#define LONGSHORE_MIXER(kind, name)                                               \
  std::unique_ptr<Mixer> make_##name##_mixer(const ArchSpec& arch, int64_t layer, \
                                             const ModuleIndex& index);
LONGSHORE_MIXERS(LONGSHORE_MIXER)
#undef LONGSHORE_MIXER

}  // namespace longshore
