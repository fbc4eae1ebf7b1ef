// PlainDecoder: the numbers of a decoder a second time, in fp64 with plain operations: no fused
// kernels, no packing, no pieces, frequencies of its own. What the units compute is compared with
// it, one unit at a time. It shares with them how config.json is read, so a switch that is misread
// shows only beside transformers. One text at a time; one thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "model/arch_spec.h"
#include "model/families.h"
#include "model/model_spec.h"

namespace longshore {

class PlainDecoder {
 public:
  // A parameter's values by its name in the files, in the files' shape, any float type.
  using Weights = std::function<at::Tensor(const std::string& name)>;

  PlainDecoder(const ArchSpec& arch, const ModelSpec& spec);

  // rows: of the embedding, one for each token. [T, hidden], fp64.
  at::Tensor embed(const at::Tensor& rows, const Weights& weights) const;
  struct BlockOutput {
    at::Tensor x;  // [T, hidden], fp64
    // int64: the positions whose experts another rounding would not change; undefined for all.
    at::Tensor sure;
  };
  // x: [T, hidden], fp64.
  BlockOutput block(int64_t layer, const at::Tensor& x, const Weights& weights) const;
  at::Tensor final_norm(const at::Tensor& x, const Weights& weights) const;
  // Of a part of the vocabulary: rows of the head [N, hidden]. [T, N], fp64.
  at::Tensor logits(const at::Tensor& normed, const at::Tensor& rows) const;

  std::string name_of(Module module, bool bias, int64_t layer) const;

 private:
  // One layer's parameters in fp64.
  class Layer;

  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const;
  at::Tensor attention(const Layer& layer, const at::Tensor& x) const;
  at::Tensor mlp(const Layer& layer, const at::Tensor& x) const;
  BlockOutput experts(const Layer& layer, const at::Tensor& x) const;
  at::Tensor expert(const Layer& layer, int64_t number, const at::Tensor& x) const;
  at::Tensor rotate(const at::Tensor& x, const RopeSpec& rope) const;

  const ArchSpec& arch_;
  NameTable::Prefix prefix_;
};

// Radians per position of each rotated pair, for a text of `positions`; the formulas of
// transformers' modeling_rope_utils. Of YaRN: Peng et al., 2023.
std::vector<double> plain_frequencies(const RopeSpec& rope, int64_t head_dim, int64_t positions);

}  // namespace longshore
