#include "model/mixers/continued_convolution.h"

#include <vector>

namespace longshore {

StateTensor convolution_state(int64_t taps, int64_t channels, const StateUse& use) {
  return {.name = "convolution inputs", .shape = {taps - 1, channels}, .type = use.compute};
}

// The earlier inputs stand before the new ones like earlier rows of one document, so each row is
// computed as in training. The kernel's sum for a row does not depend on other rows.
at::Tensor continued_convolution(const at::Tensor& x, const ConvolutionWeights& weights,
                                 std::span<const SequenceRows> sequences, size_t place) {
  const int64_t kept = weights.taps.size(2) - 1;
  std::vector<at::Tensor> parts;
  std::vector<int64_t> positions, new_rows;
  for (const SequenceRows& sequence : sequences) {
    const at::Tensor& state = sequence.state.at(place);
    if (sequence.before == 0) state.zero_();
    parts.push_back(state);
    parts.push_back(x.narrow(0, sequence.begin, sequence.count));
    for (int64_t i = 0; i < kept + sequence.count; ++i) {
      if (i >= kept) new_rows.push_back(std::ssize(positions));
      positions.push_back(i);
    }
  }
  const at::Tensor inputs = at::cat(parts);
  const auto on_device = [&](const std::vector<int64_t>& numbers) {
    return at::tensor(numbers, at::kLong).to(x.device(), /*non_blocking=*/true);
  };
  const at::Tensor all = causal_convolution(inputs, weights, on_device(positions));
  int64_t end = 0;
  for (const SequenceRows& sequence : sequences) {
    end += kept + sequence.count;
    sequence.state[place].copy_(inputs.narrow(0, end - kept, kept));
  }
  return all.index_select(0, on_device(new_rows));
}

}  // namespace longshore
