// SequenceStates: what decoding keeps of each sequence, so that its next token costs the work of
// one position: keys and values, states of recurrences, the last inputs of convolutions. Each mixer
// says what it keeps (StateTensor); the engine owns the memory, which a plan sizes; mixers read and
// extend it in forward. Compute thread only.
//
// [Note: one way to continue] A mixer continues each sequence row by row, however many rows a call
// has. So a prompt has the same bits in one piece or in several, beside any other sequences.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"

namespace longshore {

// The place of a sequence among those that are decoded at the same time.
using SequenceSlot = StrongId<struct SequenceSlotTag, int32_t>;

// One tensor that a layer keeps of a sequence.
struct StateTensor {
  std::string name;            // "keys"
  std::vector<int64_t> shape;  // of one sequence
  at::ScalarType type = at::kFloat;

  Bytes bytes() const;  // a multiple of kStateAlignment
};
inline constexpr Bytes kStateAlignment = 64;

// LayerState says what the mixer of one layer keeps of a sequence.
struct LayerState {
  int64_t layer = 0;  // its number in ArchSpec::layers
  std::vector<StateTensor> tensors;
};

// For which run the state of a layer is asked.
struct StateUse {
  int64_t longest = 1;  // positions of a sequence, prompt and answer
  at::ScalarType compute = at::kFloat;
};

// Returns the bytes of one sequence.
Bytes bytes_of_sequence(std::span<const LayerState> layers);

class SequenceStates {
 public:
  // `memory`, on `device`, has sequences * bytes_of_sequence(layers) bytes and outlives this.
  SequenceStates(std::span<const LayerState> layers, int32_t sequences, int64_t longest,
                 std::span<std::byte> memory, at::Device device = at::kCPU);

  int32_t sequences() const { return sequences_; }
  int64_t longest() const { return longest_; }
  // Returns the layer's tensors of a sequence, in the order of LayerState::tensors. Their values
  // are what the slot's last sequence left: a mixer clears what it needs when it begins a sequence.
  const std::vector<at::Tensor>& of(int64_t layer, SequenceSlot slot) const;

 private:
  int32_t sequences_;
  int64_t longest_;
  std::map<int64_t, std::vector<std::vector<at::Tensor>>> layers_;  // by layer, then slot
};

// The sequences that the documents of a micro-batch continue.
struct ContinuedSequences {
  SequenceStates* states = nullptr;
  std::vector<SequenceSlot> slots = {};  // by document; each at most once
  // By document: the positions that its state has already. The document's own positions begin
  // there; 0 begins a sequence.
  std::vector<int64_t> before = {};
  // By document: the positions of the text that is computed: of the whole prompt in each of the
  // calls that compute parts of it, else before + rows. Models without Model::restart_length do not
  // need it and take an empty list.
  std::vector<int64_t> lengths = {};
};

}  // namespace longshore
