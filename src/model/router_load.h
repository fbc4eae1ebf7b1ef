// RouterLoad: what a pass's tokens chose of the experts, and the gradient that spreads them. Units
// with a router note in forward; before backward the counts of all micro-batches and ranks are
// known, and each router adds its share of the balance loss to its own gradient. Owned by whoever
// runs the units; compute thread only.
//
// [Note: balance loss] experts x sum over experts of f_e p_e. f_e: the pairs (token, choice) of the
// whole step that went to e, over its tokens, all sparse layers together; p_e: the mean of e's
// probability over the same. transformers has the same for one forward call, and adds it for each
// micro-batch. Pooled over the step it depends neither on micro-batches, nor on packing, nor on
// ranks. Counts are whole numbers, so the gradient is the same bits however they are added up: that
// of each probability of expert e is coefficient x experts x f_e / (layers x tokens).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

namespace longshore {

// What a model's routers have in common; layers = 0: it has none, or nobody asks.
struct RouterShape {
  int64_t layers = 0;  // of the model, dense ones too
  int64_t experts = 0, top_k = 0;
  double balance = 0.0;  // the loss's coefficient; 0: none
  bool watched = false;  // figures are asked for
  bool asked() const { return layers > 0 && (watched || balance != 0.0); }
};

class RouterLoad {
 public:
  RouterLoad(const RouterShape& shape, at::Device device) : shape_(shape), device_(device) {}

  // A new pass: nothing is noted.
  void begin();
  // Whether `note` counts: forward does, what backward runs again does not.
  void count(bool on) { counting_ = on; }
  // A layer's choices for one micro-batch. `starts`: where each expert's pairs begin (Dispatch);
  // `probabilities`: fp32 [T, experts], the softmax over all.
  void note(int64_t layer, std::span<const int64_t> starts, const at::Tensor& probabilities);

  // The pairs of each expert so far, all layers together.
  std::vector<double> pooled() const;
  // From the pairs of the whole step: the gradient of every position's probabilities.
  void balance(std::span<const double> pairs);
  // fp32 [experts]; undefined: no balance loss.
  const at::Tensor& gradient() const { return gradient_; }
  // For `router_statistics`, to be added up over ranks.
  const std::vector<double>& sums() const { return sums_; }

 private:
  RouterShape shape_;
  at::Device device_;
  bool counting_ = false;
  std::vector<double> sums_;  // pairs of [layers, experts], entropies, probabilities of [experts]
  at::Tensor gradient_;
};

// What a step's tokens chose.
struct RouterStatistics {
  std::vector<std::vector<int64_t>> load;  // [sparse layer][expert]: tokens
  double most = 0.0;                       // the busiest expert's load over its layer's mean
  int64_t idle = 0;                        // experts of a layer without a token
  double entropy = 0.0;                    // of a token's probabilities, mean, in nats
  double balance_loss = 0.0;               // without its coefficient
};
// From the sums of all ranks.
RouterStatistics router_statistics(const RouterShape& shape, std::span<const double> sums);

}  // namespace longshore
