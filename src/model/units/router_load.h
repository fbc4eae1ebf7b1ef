// RouterLoad: the experts that a pass's tokens chose, and the gradient of the balance loss. Units
// with a router report to it in forward. Before backward the counts of all micro-batches and ranks
// are added, and each router adds its part of the balance loss to its gradient. The component that
// runs the units owns it; compute thread only.
//
// [Note: balance loss] The loss is experts x sum over experts of f_e p_e. f_e is the number of
// pairs (token, choice) of the whole step that went to e, divided by its tokens, over all sparse
// layers; p_e is the mean of e's probability over the same. transformers computes it per forward
// call and adds it for each micro-batch. Pooled over the step it does not depend on micro-batches,
// packing or ranks. Counts are whole numbers, so the gradient has the same bits in any order of
// adding: for each probability of e it is coefficient x experts x f_e / (layers x tokens).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shard/unit_spec.h"

namespace longshore {

struct ArchSpec;

// The settings of a model's routers; layers = 0 means no routers or no reporting.
struct RouterShape {
  int64_t layers = 0;  // all layers of the model, dense ones too
  int64_t experts = 0, top_k = 0;
  double balance = 0.0;          // coefficient of the loss; 0: none
  bool watched = false;          // statistics are requested
  double correction_rate = 0.0;  // of move_corrections; 0: no move
  bool asked() const { return layers > 0 && (watched || balance != 0.0 || correction_rate != 0.0); }
};

class RouterLoad {
 public:
  RouterLoad(const RouterShape& shape, at::Device device) : shape_(shape), device_(device) {}

  // Starts a new pass and clears the sums.
  void begin();
  // Turns counting in note() on for forward and off for recomputation in backward.
  void count(bool on) { counting_ = on; }
  // Adds a layer's choices for one micro-batch. `starts` is the start of each expert's pairs
  // (Dispatch); `probabilities`, fp32 [T, experts], is the softmax over all experts, or undefined
  // if neither statistics nor a balance loss are requested.
  void note(int64_t layer, std::span<const int64_t> starts, const at::Tensor& probabilities);

  // Returns the pairs of each expert so far, over all layers.
  std::vector<double> pooled() const;
  // Computes the gradient of every position's probabilities from the pairs of the whole step.
  void balance(std::span<const double> pairs);
  // Returns fp32 [experts]; undefined if there is no balance loss.
  const at::Tensor& gradient() const { return gradient_; }
  // Sets the corrections of all layers' choices, [layers, experts], in place of those of the units'
  // parameters; empty: units use their own.
  void set_corrections(std::vector<float> corrections);
  const std::vector<float>& corrections() const { return corrections_; }
  // Returns a layer's, fp32 [experts]; undefined if none are set.
  at::Tensor correction(int64_t layer) const;
  // Returns the input of router_statistics(), which the ranks add up first.
  const std::vector<double>& sums() const { return sums_; }

 private:
  RouterShape shape_;
  at::Device device_;
  bool counting_ = false;
  std::vector<double> sums_;  // pairs of [layers, experts], entropies, probabilities of [experts]
  at::Tensor gradient_;
  std::vector<float> corrections_;
};

// Statistics of the routing of one step.
struct RouterStatistics {
  std::vector<std::vector<int64_t>> load;  // [sparse layer][expert]: tokens
  double most = 0.0;                       // load of the busiest expert over its layer's mean
  int64_t idle = 0;                        // number of (layer, expert) without a token
  double entropy = 0.0;                    // mean entropy of a token's probabilities, in nats
  double balance_loss = 0.0;               // without its coefficient
};
// Computes the statistics from the sums of all ranks.
RouterStatistics router_statistics(const RouterShape& shape, std::span<const double> sums);

// ---- Corrections ----

// Corrections of routers' choices that a run moves (arXiv:2412.19437, section 2.1.2): after a step
// the correction of an expert grows by the rate if it had fewer tokens than the mean of its layer,
// and shrinks by it if it had more. Corrections are fp32 [layers, experts], zeros for layers
// without a router.

// Returns the place of each layer's corrections by the name of the parameter that holds them in
// the model's files; empty if the family has none. `whole` is of make_model_spec.
std::map<std::string, int64_t> correction_places(const ArchSpec& arch, const ModelSpec& whole);

// Moves the corrections by the loads of a whole step: RouterLoad::sums() added over its ranks. The
// loads are whole numbers, so all ranks get the same bits.
void move_corrections(const RouterShape& shape, std::span<const double> sums,
                      std::span<float> corrections);

}  // namespace longshore
