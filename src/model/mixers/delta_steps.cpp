#include "model/mixers/delta_steps.h"

#include <cmath>
#include <vector>

#include "device/compute_threads.h"
#include "device/gpu_tensors.h"
#include "kernels/chunk_rows.h"
#include "kernels/recurrent_steps.h"
#include "model/mixers/delta_scan.h"
#include "model/mixers/gate_values.h"

namespace longshore {
namespace {

// The share of a value that is written, and the factor of the state, fp32 [T, value_heads].
struct StepGates {
  at::Tensor beta, decay;
};

// The share is rounded to the compute dtype, as in delta_rule.
StepGates gates_of(const DeltaInputs& in) {
  const at::Tensor shifted = (in.decay.to(at::kFloat) + in.step.to(at::kFloat)).contiguous();
  const at::Tensor rate = in.rate.to(at::kFloat).exp().neg_();
  if (takes_gpu_form(in.mixed)) {
    return {.beta = at::sigmoid(in.beta).to(at::kFloat),
            .decay = at::softplus(shifted).mul_(rate).exp_()};
  }
  at::Tensor beta = in.beta.to(at::kFloat).contiguous();
  const int64_t heads = rate.size(0);
  const float* const x = beta.const_data_ptr<float>();
  const float* const y = shifted.const_data_ptr<float>();
  const float* const rates = rate.const_data_ptr<float>();
  StepGates gates{.beta = at::empty_like(beta), .decay = at::empty_like(shifted)};
  auto* const shares = gates.beta.mutable_data_ptr<float>();
  auto* const factors = gates.decay.mutable_data_ptr<float>();
  for (int64_t i = 0; i < beta.numel(); ++i) {
    shares[i] = sigmoid_of(x[i]);
    factors[i] = decay_of(softplus_of(y[i]) * rates[i % heads]);
  }
  gates.beta = gates.beta.to(in.beta.scalar_type()).to(at::kFloat);
  return gates;
}

// One key head: the steps of its value heads. Its thread owns it.
class HeadSteps {
 public:
  HeadSteps(const DeltaSpec& spec, const at::Tensor& mixed, const StepGates& gates,
            const at::Tensor& out)
      : spec_(spec),
        mixed_(mixed.const_data_ptr<float>()),
        beta_(gates.beta.const_data_ptr<float>()),
        decay_(gates.decay.const_data_ptr<float>()),
        out_(out.mutable_data_ptr<float>()),
        units_(static_cast<size_t>(2 * spec.key_dim)) {}

  // Computes a row. `states` are those of all value heads.
  void step(int64_t row, int64_t key_head, float* states) {
    const int64_t keys = spec_.key_dim, values = spec_.value_dim;
    const float* const own = mixed_ + row * spec_.mixed_width();
    float* const query = units_.data();
    float* const key = query + keys;
    make_unit(own + key_head * keys, 1.0f / std::sqrt(static_cast<float>(keys)), query);
    make_unit(own + spec_.key_width() + key_head * keys, 1.0f, key);
    const int64_t times = spec_.value_heads / spec_.key_heads;
    for (int64_t head = key_head * times; head < (key_head + 1) * times; ++head) {
      const kernels::RecurrentStep step{.keys = keys,
                                        .values = values,
                                        .key = key,
                                        .query = query,
                                        .value = own + 2 * spec_.key_width() + head * values,
                                        .decay = decay_[row * spec_.value_heads + head],
                                        .state = states + head * keys * values,
                                        .out = out_ + row * spec_.value_width() + head * values};
      kernels::delta_step(step, beta_[row * spec_.value_heads + head]);
    }
  }

 private:
  // Writes `scale` times the unit vector of x.
  void make_unit(const float* x, float scale, float* unit) const {
    float square = 0.0f;
    kernels::row_products(1, spec_.key_dim, x, x, &square);
    const float factor = scale / std::sqrt(square + static_cast<float>(kDeltaNormEps));
    kernels::scale_rows(1, spec_.key_dim, &factor, x, unit);
  }

  const DeltaSpec& spec_;
  const float *mixed_, *beta_, *decay_;
  float* out_;
  std::vector<float> units_;  // the query, then the key
};

// Returns the unit vectors of heads [T, key_heads * key_dim], once for each value head.
at::Tensor unit_heads(const at::Tensor& x, const DeltaSpec& spec) {
  const at::Tensor heads = x.reshape({x.size(0), spec.key_heads, spec.key_dim});
  const at::Tensor squares = (heads * heads).sum(-1, /*keepdim=*/true);
  return (heads * (squares + kDeltaNormEps).rsqrt())
      .repeat_interleave(spec.value_heads / spec.key_heads, 1);
}

// Computes the rows with LibTorch's operations. `mixed` and `out` are fp32.
void tensor_steps(const at::Tensor& mixed, const StepGates& gates, const DeltaSpec& spec,
                  std::span<const SequenceRows> sequences, size_t place, const at::Tensor& out) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(spec.key_dim));
  const at::Tensor queries = unit_heads(mixed.narrow(1, 0, spec.key_width()), spec).mul_(scale);
  const at::Tensor keys = unit_heads(mixed.narrow(1, spec.key_width(), spec.key_width()), spec);
  const at::Tensor values = mixed.narrow(1, 2 * spec.key_width(), spec.value_width())
                                .reshape({-1, spec.value_heads, spec.value_dim});
  for (const SequenceRows& sequence : sequences) {
    const at::Tensor& state = sequence.state.at(place);
    for (int64_t row = sequence.begin; row < sequence.begin + sequence.count; ++row) {
      const at::Tensor key = keys[row].unsqueeze(2);
      state.mul_(gates.decay[row].view({-1, 1, 1}));
      const at::Tensor missing = values[row] - (state * key).sum(1);
      state.addcmul_(key, (missing * gates.beta[row].unsqueeze(1)).unsqueeze(1));
      out[row].copy_((state * queries[row].unsqueeze(2)).sum(1).flatten());
    }
  }
}

}  // namespace

StateTensor delta_state(const DeltaSpec& spec) {
  return {.name = "recurrence", .shape = {spec.value_heads, spec.key_dim, spec.value_dim}};
}

at::Tensor delta_steps(const DeltaInputs& inputs, const DeltaSpec& spec,
                       std::span<const SequenceRows> sequences, size_t place) {
  const at::Tensor mixed = inputs.mixed.to(at::kFloat).contiguous();
  const StepGates gates = gates_of(inputs);
  const at::Tensor out = at::empty({mixed.size(0), spec.value_width()}, mixed.options());
  for (const SequenceRows& sequence : sequences) {
    if (sequence.before == 0) sequence.state.at(place).zero_();
  }
  if (takes_gpu_form(inputs.mixed)) {
    tensor_steps(mixed, gates, spec, sequences, place, out);
  } else {
    const int64_t count = std::ssize(sequences);
    parallel_for(0, count * spec.key_heads, 1, [&](int64_t begin, int64_t end) {
      HeadSteps steps(spec, mixed, gates, out);
      for (int64_t item = begin; item < end; ++item) {
        const SequenceRows& sequence = sequences[static_cast<size_t>(item % count)];
        auto* const states = sequence.state[place].mutable_data_ptr<float>();
        for (int64_t row = sequence.begin; row < sequence.begin + sequence.count; ++row) {
          steps.step(row, item / count, states);
        }
      }
    });
  }
  return out.to(inputs.mixed.scalar_type());
}

}  // namespace longshore
