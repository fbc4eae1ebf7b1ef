#include "model/mixers/mamba_steps.h"

#include <algorithm>
#include <vector>

#include "device/compute_threads.h"
#include "device/gpu_tensors.h"
#include "kernels/chunk_rows.h"
#include "kernels/recurrent_steps.h"
#include "model/mixers/gate_values.h"

namespace longshore {
namespace {

// The factor of the values that are written, and that of the state, fp32 [T, heads].
struct StepGates {
  at::Tensor step, decay;
};

StepGates gates_of(const MambaInputs& in, double least) {
  const at::Tensor shifted = (in.steps.to(at::kFloat) + in.offset.to(at::kFloat)).contiguous();
  const at::Tensor rate = in.rate.to(at::kFloat).exp().neg_();
  if (takes_gpu_form(in.mixed)) {
    const at::Tensor step = at::softplus(shifted).clamp_min_(least);
    return {.step = step, .decay = (step * rate).exp_()};
  }
  const int64_t heads = rate.size(0);
  const float* const x = shifted.const_data_ptr<float>();
  const float* const rates = rate.const_data_ptr<float>();
  const StepGates gates{.step = at::empty_like(shifted), .decay = at::empty_like(shifted)};
  auto* const steps = gates.step.mutable_data_ptr<float>();
  auto* const factors = gates.decay.mutable_data_ptr<float>();
  for (int64_t i = 0; i < shifted.numel(); ++i) {
    steps[i] = std::max(softplus_of(x[i]), static_cast<float>(least));
    factors[i] = decay_of(steps[i] * rates[i % heads]);
  }
  return gates;
}

// The steps of heads on the CPU. Its thread owns it.
class HeadSteps {
 public:
  HeadSteps(const MambaSpec& spec, const at::Tensor& mixed, const StepGates& gates,
            const at::Tensor& skip, const at::Tensor& out)
      : spec_(spec),
        mixed_(mixed.const_data_ptr<float>()),
        step_(gates.step.const_data_ptr<float>()),
        decay_(gates.decay.const_data_ptr<float>()),
        skip_(skip.const_data_ptr<float>()),
        out_(out.mutable_data_ptr<float>()),
        written_(static_cast<size_t>(spec.head_dim)) {}

  // Computes a row. `states` are those of all heads.
  void step(int64_t row, int64_t head, float* states) {
    const int64_t inner = spec_.inner_width(), width = spec_.head_dim;
    const int64_t group = head / (spec_.heads / spec_.groups);
    const float* const own = mixed_ + row * spec_.mixed_width();
    const float* const value = own + head * width;
    float* const out = out_ + row * inner + head * width;
    kernels::scale_rows(1, width, step_ + row * spec_.heads + head, value, written_.data());
    kernels::recurrent_step({.keys = spec_.state,
                             .values = width,
                             .key = own + inner + group * spec_.state,
                             .query = own + inner + (spec_.groups + group) * spec_.state,
                             .value = written_.data(),
                             .decay = decay_[row * spec_.heads + head],
                             .state = states + head * spec_.state * width,
                             .out = out});
    kernels::add_scaled_rows(1, width, skip_ + head, value, out);
  }

 private:
  const MambaSpec& spec_;
  const float *mixed_, *step_, *decay_, *skip_;
  float* out_;
  std::vector<float> written_;
};

// Computes the rows with LibTorch's operations. `mixed` and `out` are fp32.
void tensor_steps(const at::Tensor& mixed, const StepGates& gates, const MambaSpec& spec,
                  const at::Tensor& skip, std::span<const SequenceRows> sequences, size_t place,
                  const at::Tensor& out) {
  const int64_t inner = spec.inner_width(), keyed = spec.groups * spec.state;
  const auto by_head = [&](int64_t first) {
    return mixed.narrow(1, first, keyed)
        .reshape({-1, spec.groups, spec.state})
        .repeat_interleave(spec.heads / spec.groups, 1);
  };
  const at::Tensor keys = by_head(inner), queries = by_head(inner + keyed);
  const at::Tensor values = mixed.narrow(1, 0, inner).reshape({-1, spec.heads, spec.head_dim});
  for (const SequenceRows& sequence : sequences) {
    const at::Tensor& state = sequence.state.at(place);
    for (int64_t row = sequence.begin; row < sequence.begin + sequence.count; ++row) {
      const at::Tensor written = values[row] * gates.step[row].unsqueeze(1);
      state.mul_(gates.decay[row].view({-1, 1, 1}));
      state.addcmul_(keys[row].unsqueeze(2), written.unsqueeze(1));
      const at::Tensor read = (state * queries[row].unsqueeze(2)).sum(1);
      out[row].copy_(read.addcmul_(values[row], skip.unsqueeze(1)).flatten());
    }
  }
}

}  // namespace

StateTensor mamba_state(const MambaSpec& spec) {
  return {.name = "recurrence", .shape = {spec.heads, spec.state, spec.head_dim}};
}

at::Tensor mamba_steps(const MambaInputs& inputs, const MambaSpec& spec,
                       std::span<const SequenceRows> sequences, size_t place) {
  const at::Tensor mixed = inputs.mixed.to(at::kFloat).contiguous();
  const at::Tensor skip = inputs.skip.to(at::kFloat).contiguous();
  const StepGates gates = gates_of(inputs, spec.least_step);
  const at::Tensor out = at::empty({mixed.size(0), spec.inner_width()}, mixed.options());
  for (const SequenceRows& sequence : sequences) {
    if (sequence.before == 0) sequence.state.at(place).zero_();
  }
  if (takes_gpu_form(inputs.mixed)) {
    tensor_steps(mixed, gates, spec, skip, sequences, place, out);
    return out;
  }
  const int64_t count = std::ssize(sequences);
  parallel_for(0, count * spec.heads, 1, [&](int64_t begin, int64_t end) {
    HeadSteps steps(spec, mixed, gates, skip, out);
    for (int64_t item = begin; item < end; ++item) {
      const SequenceRows& sequence = sequences[static_cast<size_t>(item % count)];
      auto* const states = sequence.state[place].mutable_data_ptr<float>();
      for (int64_t row = sequence.begin; row < sequence.begin + sequence.count; ++row) {
        steps.step(row, item / count, states);
      }
    }
  });
  return out;
}

}  // namespace longshore
