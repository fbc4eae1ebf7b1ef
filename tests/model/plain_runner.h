// PlainRunner: runs a decoder's units one after the other like the engine, but without slots,
// streams or layer-major order. Tests use it as reference.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "model/models/decoder_model.h"

namespace longshore {

// NamedSink: sums gradients in fp32 tensors by name; those of pieces at their rows of the whole.
class NamedSink : public GradientSink {
 public:
  NamedSink(const ModelSpec& model, UnitId unit, std::map<std::string, at::Tensor>& sums);
  bool wants(int32_t parameter) const override;
  void add(int32_t parameter, const at::Tensor& grad) override;
  void add_rows(int32_t parameter, const at::Tensor& rows, const at::Tensor& values) override;
  void add_product(int32_t parameter, const at::Tensor& left, const at::Tensor& right) override;
  void add_product_at(int32_t parameter, int64_t matrix, const at::Tensor& left,
                      const at::Tensor& right) override;

 private:
  at::Tensor sum_of(int32_t parameter) const;

  std::vector<ParamSpec> specs_;
  std::map<std::string, at::Tensor>& sums_;
};

// PlainStates: the states of a runner's sequences, in memory of their own, which begins as NaNs.
struct PlainStates {
  PlainStates(const Model& model, int32_t count, const StateUse& use);

  std::vector<LayerState> layers;
  at::Tensor memory;
  SequenceStates states;
};

// The next tokens of a sequence. `before` positions of it have been computed; those that are
// computed belong to a text of `length` positions, 0: of before + tokens.
struct NextTokens {
  int32_t slot = 0;
  int64_t before = 0;
  std::vector<int64_t> tokens;
  int64_t length = 0;
};

class PlainRunner {
 public:
  enum class Recompute { kUnit, kNone };
  struct Outcome {
    double loss_sum = 0.0;
    int64_t trained = 0;
    double balance_loss = 0.0;                    // includes its coefficient
    std::map<std::string, at::Tensor> gradients;  // gradients of scale * loss_sum
  };

  // Casts the parameters to `dtype`, except those that stay fp32. `weights` has the bytes of packed
  // ones. The model must outlive the runner.
  PlainRunner(const Model& model, const std::map<std::string, at::Tensor>& weights,
              at::ScalarType dtype);

  // Makes one micro-batch in which every row is a document.
  static MicroBatch make_batch(const std::vector<std::vector<int64_t>>& tokens,
                               const std::vector<std::vector<int64_t>>& targets);
  at::Tensor logits(const MicroBatch& batch) const;
  // Continues each of the sequences and returns the logits of its new positions, [tokens,
  // vocabulary].
  std::vector<at::Tensor> continued_logits(PlainStates& states,
                                           const std::vector<NextTokens>& sequences) const;
  double loss(const MicroBatch& batch) const;
  // Returns how often the target has the highest score.
  HitCount hits(MicroBatch batch) const;
  Outcome gradients(const std::vector<MicroBatch>& batches, double scale,
                    Recompute recompute) const;

  const std::vector<at::Tensor>& parameters(UnitId unit) const {
    return parameters_.at(static_cast<size_t>(unit.value));
  }

 private:
  Carry hidden(const MicroBatch& batch) const;
  void one_batch(const MicroBatch& batch, double scale, Recompute recompute,
                 Outcome& outcome) const;

  const Model& model_;
  std::vector<std::vector<at::Tensor>> parameters_;  // by unit, owned then tied
};

}  // namespace longshore
