// PlainDecoder: a second implementation of the decoder in fp64 with plain operations: no fused
// kernels, no packing, no splitting, its own RoPE frequencies. Units are compared with it one at a
// time. Both share the parser of config.json, so only transformers reveals a misread switch. One
// text at a time; one thread.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "model/families/arch_spec.h"
#include "model/families/families.h"
#include "model/parameters/model_spec.h"

namespace longshore {

class PlainDecoder {
 public:
  // Returns a parameter's values by its name in the files, in the files' shape and any float type.
  using Weights = std::function<at::Tensor(const std::string& name)>;

  // Layer gives access to one layer's parameters in fp64 (plain_layer.h).
  class Layer;

  PlainDecoder(const ArchSpec& arch, const ModelSpec& spec);

  // `rows` are the embedding rows of the tokens. Returns [T, hidden], fp64.
  at::Tensor embed(const at::Tensor& rows, const Weights& weights) const;
  // The numbers of a text that layers read beside x, all fp64.
  struct Shared {
    at::Tensor layer_inputs;                                 // [T, layers * width]
    std::map<int64_t, std::array<at::Tensor, 2>> keys = {};  // keys and values by layer, [T, width]
  };
  // Returns the inputs of layers for the rows of their table and the embedding x.
  at::Tensor layer_inputs(const at::Tensor& rows, const at::Tensor& x,
                          const Weights& weights) const;
  struct BlockOutput {
    at::Tensor x;  // [T, hidden], fp64
    // int64 positions whose expert choice is independent of rounding; undefined if all are.
    at::Tensor sure;
  };
  // x is [T, hidden], fp64. `shared` has keys of earlier layers, and gets the layer's.
  BlockOutput block(int64_t layer, const at::Tensor& x, const Weights& weights,
                    Shared& shared) const;
  at::Tensor final_norm(const at::Tensor& x, const Weights& weights) const;
  // `rows` [N, hidden] are the head's rows for a part of the vocabulary. Returns [T, N], fp64.
  at::Tensor logits(const at::Tensor& normed, const at::Tensor& rows) const;

  std::string name_of(Module module, ParameterRole role, int64_t layer) const;

 private:
  at::Tensor mlp(const Layer& layer, const at::Tensor& x) const;
  BlockOutput experts(const Layer& layer, const at::Tensor& x, const at::Tensor& chooser) const;
  at::Tensor expert(const Layer& layer, int64_t number, const at::Tensor& x) const;

  const ArchSpec& arch_;
  NameTable::Prefix prefix_;
};

// Returns radians per position for each rotated pair of a text of `positions`. The formulas follow
// transformers' modeling_rope_utils; YaRN: Peng et al., 2023.
std::vector<double> plain_frequencies(const RopeSpec& rope, int64_t head_dim, int64_t positions);

}  // namespace longshore
