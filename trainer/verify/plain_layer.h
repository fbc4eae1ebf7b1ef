// PlainDecoder::Layer: the parameters of one layer, or of the inputs of all, in fp64, and the plain
// operations that its formulas share. Included by the files of PlainDecoder and of plain_mixers;
// one thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "model/units/linear.h"
#include "trainer/verify/plain_decoder.h"

namespace longshore {

// Returns x divided by its root mean square.
at::Tensor plain_scaled(const at::Tensor& x, double eps);
// Returns the norm of x; `bias` may be undefined.
at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      NormKind kind, double eps);
// Returns the product with a matrix, with its adapter and bias if it has them. Nothing is dropped.
at::Tensor plain_product(const Linear& linear, const at::Tensor& x);
at::Tensor plain_activation(const at::Tensor& x, Activation activation);
// Returns x, [heads, T, head_dim], with its positions.
at::Tensor plain_rotated(const at::Tensor& x, const RopeSpec& rope, int64_t head_dim);
// Returns the sum over the taps [channels, 1, n] of x [T, channels] at the n latest positions.
at::Tensor plain_convolved(const at::Tensor& x, const at::Tensor& taps);
// Returns a mask [T, T] that is true if the row's query must not attend to the column's key.
at::Tensor hidden_keys(int64_t positions, int64_t window);

class PlainDecoder::Layer {
 public:
  // `number` is kNoLayer for the inputs of all layers.
  Layer(const PlainDecoder& decoder, int64_t number, const Weights& weights);

  const ArchSpec& arch() const { return decoder_.arch_; }
  int64_t number() const { return number_; }
  const LayerSpec& spec() const { return decoder_.arch_.layers.at(static_cast<size_t>(number_)); }

  // Returns an fp64 tensor; undefined if the layer has no such parameter.
  at::Tensor get(Module module, ParameterRole role = ParameterRole::kWeight) const {
    const at::Tensor values = stored(module, role, -1);
    return values.defined() ? values.to(at::kDouble) : values;
  }

  // Returns one expert's matrix, from its own parameter or from the parameter of all experts. Its
  // shape is [in, out] if the family stores it so, otherwise [out, in].
  at::Tensor get(Module module, Module of_all, ParameterRole role, int64_t expert) const {
    at::Tensor values = stored(module, role, expert);
    if (values.defined()) return values.to(at::kDouble);
    values = stored(of_all, role, -1);
    return values.defined() ? values.select(0, expert).to(at::kDouble) : values;
  }

  // Returns a matrix with its adapter and bias in fp64; one of an expert's if `of_all` names the
  // module of all of them.
  Linear matrix(Module module) const;
  Linear matrix(Module module, Module of_all, int64_t expert) const;
  // Returns the product with the matrix.
  at::Tensor linear(Module module, const at::Tensor& x) const {
    return plain_product(matrix(module), x);
  }

  // Returns x unchanged if the layer has no such norm.
  at::Tensor norm(Module module, const at::Tensor& x) const;

 private:
  const PlainDecoder& decoder_;
  int64_t number_;
  const Weights& weights_;
  at::Tensor stored(Module module, ParameterRole role, int64_t expert) const {
    const auto name = names_.find({module, role, expert});
    return name == names_.end() ? at::Tensor() : weights_(name->second);
  }

  double scaling_of(Module module) const {
    const auto found = scalings_.find(module);
    return found == scalings_.end() ? 1.0 : found->second;
  }

  std::map<std::tuple<Module, ParameterRole, int64_t>, std::string> names_;
  std::map<Module, double> scalings_;  // of the adapters' products
};

}  // namespace longshore
