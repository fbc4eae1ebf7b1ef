#include "model/units/sequence_states.h"

#include "base/errors.h"

namespace longshore {

Bytes StateTensor::bytes() const {
  Bytes elements = 1;
  for (const int64_t size : shape) elements *= size;
  return align_up(elements * static_cast<Bytes>(c10::elementSize(type)), kStateAlignment);
}

Bytes bytes_of_sequence(std::span<const LayerState> layers) {
  Bytes sum = 0;
  for (const LayerState& layer : layers) {
    for (const StateTensor& tensor : layer.tensors) sum += tensor.bytes();
  }
  return sum;
}

SequenceStates::SequenceStates(std::span<const LayerState> layers, int32_t sequences,
                               int64_t longest, std::span<std::byte> memory, at::Device device)
    : sequences_(sequences), longest_(longest) {
  LONGSHORE_CHECK(std::ssize(memory) >= sequences * bytes_of_sequence(layers));
  std::byte* next = memory.data();
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    for (const LayerState& layer : layers) {
      std::vector<at::Tensor>& tensors = layers_[layer.layer].emplace_back();
      for (const StateTensor& tensor : layer.tensors) {
        tensors.push_back(
            at::from_blob(next, tensor.shape, at::TensorOptions(tensor.type).device(device)));
        next += tensor.bytes();
      }
    }
  }
}

const std::vector<at::Tensor>& SequenceStates::of(int64_t layer, SequenceSlot slot) const {
  return layers_.at(layer).at(static_cast<size_t>(slot.value));
}

}  // namespace longshore
