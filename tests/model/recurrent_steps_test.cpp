// The recurrences of gated DeltaNet and of Mamba-2, one position after the other over kept states,
// agree with their chunks.
#include <gtest/gtest.h>

#include "device/gpu_tensors.h"
#include "model/mixers/delta_steps.h"
#include "model/mixers/mamba_steps.h"
#include "tests/fakes/cpu_branches.h"

namespace longshore {
namespace {

// Widths are above one group of the kernels and no multiple of it.
constexpr DeltaSpec kDelta{
    .key_heads = 2, .value_heads = 4, .key_dim = 18, .value_dim = 21, .taps = 4};

MambaSpec mamba_spec() {
  MambaSpec spec;
  spec.heads = 4;
  spec.head_dim = 19;
  spec.groups = 2;
  spec.state = 23;
  spec.least_step = 0.4;  // above a fifth of the steps
  return spec;
}

at::Tensor normal(at::IntArrayRef sizes) {
  return at::randn(sizes);
}

DeltaInputs delta_inputs(int64_t positions) {
  at::manual_seed(7);
  return {.mixed = normal({positions, kDelta.mixed_width()}),
          .beta = normal({positions, kDelta.value_heads}),
          .decay = normal({positions, kDelta.value_heads}),
          .rate = normal({kDelta.value_heads}) - 1.5,
          .step = normal({kDelta.value_heads}) * 0.3};
}

MambaInputs mamba_inputs(int64_t positions) {
  at::manual_seed(7);
  const MambaSpec spec = mamba_spec();
  return {.mixed = normal({positions, spec.mixed_width()}),
          .steps = normal({positions, spec.heads}),
          .rate = normal({spec.heads}) * 0.5 - 1.0,
          .offset = normal({spec.heads}) * 0.3,
          .skip = normal({spec.heads})};
}

double relative_error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got - expected).norm() / expected.norm()).item<double>();
}

// The rows of three sequences: two that begin, and one that goes on.
struct Sequences {
  std::vector<SequenceRows> rows;
  std::vector<int64_t> starts{0, 90, 91, 140};

  explicit Sequences(const StateTensor& state) {
    for (size_t d = 0; d < 3; ++d) {
      // A slot has what its last sequence left.
      rows.push_back({.begin = starts[d],
                      .count = starts[d + 1] - starts[d],
                      .state = {at::full(state.shape, 7.5)}});
    }
  }
  // Returns the rows [first, first + count) of sequence `d` as a call of their own.
  SequenceRows part(size_t d, int64_t first, int64_t count) const {
    SequenceRows own = rows.at(d);
    own.begin += first;
    own.before = first;
    own.count = count;
    return own;
  }
};

// Goal: one step a position gives what chunks of matrix products give.
TEST(DeltaSteps, AgreeWithTheRuleInChunks) {
  const DeltaInputs inputs = delta_inputs(140);
  const Sequences all(delta_state(kDelta));
  const fakes::CpuBranches on_cpu;
  const at::Tensor expected = delta_rule(inputs, kDelta, all.starts);
  EXPECT_LE(relative_error(delta_steps(inputs, kDelta, all.rows, 0), expected), 2e-6);
}

// Goal: the operations that a GPU takes give the same.
TEST(DeltaSteps, TheFormOfAGpuAgrees) {
  const DeltaInputs inputs = delta_inputs(140);
  const Sequences all(delta_state(kDelta)), other(delta_state(kDelta));
  const fakes::CpuBranches on_cpu;
  const at::Tensor expected = delta_steps(inputs, kDelta, all.rows, 0);
  const AbsentGpu absent;
  const at::Tensor got = delta_steps(inputs, kDelta, other.rows, 0);
  EXPECT_LE(relative_error(got, expected), 2e-6);
  for (size_t d = 0; d < 3; ++d) {
    EXPECT_LE(relative_error(other.rows[d].state[0], all.rows[d].state[0]), 2e-6) << d;
  }
}

// Goal: a sequence that is computed alone and in two calls has the bits that it has beside others,
// in its values and in its state.
TEST(DeltaSteps, CallsAndOtherSequencesChangeNoBit) {
  const DeltaInputs inputs = delta_inputs(140);
  const Sequences all(delta_state(kDelta)), other(delta_state(kDelta));
  const fakes::CpuBranches on_cpu;
  const at::Tensor expected = delta_steps(inputs, kDelta, all.rows, 0);
  const std::vector<SequenceRows> first{other.part(0, 0, 31)}, rest{other.part(0, 31, 59)};
  const at::Tensor begun = delta_steps(inputs, kDelta, first, 0);
  const at::Tensor gone_on = delta_steps(inputs, kDelta, rest, 0);
  EXPECT_TRUE(at::equal(begun.slice(0, 0, 31), expected.slice(0, 0, 31)));
  EXPECT_TRUE(at::equal(gone_on.slice(0, 31, 90), expected.slice(0, 31, 90)));
  EXPECT_TRUE(at::equal(other.rows[0].state[0], all.rows[0].state[0]));
}

// Goal: one step a position gives what chunks of matrix products give.
TEST(MambaSteps, AgreeWithTheScanInChunks) {
  const MambaInputs inputs = mamba_inputs(140);
  const Sequences all(mamba_state(mamba_spec()));
  const fakes::CpuBranches on_cpu;
  const at::Tensor expected = mamba_scan(inputs, mamba_spec(), all.starts);
  EXPECT_LE(relative_error(mamba_steps(inputs, mamba_spec(), all.rows, 0), expected), 2e-6);
}

// Goal: the operations that a GPU takes give the same.
TEST(MambaSteps, TheFormOfAGpuAgrees) {
  const MambaInputs inputs = mamba_inputs(140);
  const Sequences all(mamba_state(mamba_spec())), other(mamba_state(mamba_spec()));
  const fakes::CpuBranches on_cpu;
  const at::Tensor expected = mamba_steps(inputs, mamba_spec(), all.rows, 0);
  const AbsentGpu absent;
  const at::Tensor got = mamba_steps(inputs, mamba_spec(), other.rows, 0);
  EXPECT_LE(relative_error(got, expected), 2e-6);
  for (size_t d = 0; d < 3; ++d) {
    EXPECT_LE(relative_error(other.rows[d].state[0], all.rows[d].state[0]), 2e-6) << d;
  }
}

// Goal: a sequence that is computed alone and in two calls has the bits that it has beside others,
// in its values and in its state.
TEST(MambaSteps, CallsAndOtherSequencesChangeNoBit) {
  const MambaInputs inputs = mamba_inputs(140);
  const Sequences all(mamba_state(mamba_spec())), other(mamba_state(mamba_spec()));
  const fakes::CpuBranches on_cpu;
  const at::Tensor expected = mamba_steps(inputs, mamba_spec(), all.rows, 0);
  const std::vector<SequenceRows> first{other.part(0, 0, 31)}, rest{other.part(0, 31, 59)};
  const at::Tensor begun = mamba_steps(inputs, mamba_spec(), first, 0);
  const at::Tensor gone_on = mamba_steps(inputs, mamba_spec(), rest, 0);
  EXPECT_TRUE(at::equal(begun.slice(0, 0, 31), expected.slice(0, 0, 31)));
  EXPECT_TRUE(at::equal(gone_on.slice(0, 31, 90), expected.slice(0, 31, 90)));
  EXPECT_TRUE(at::equal(other.rows[0].state[0], all.rows[0].state[0]));
}

}  // namespace
}  // namespace longshore
