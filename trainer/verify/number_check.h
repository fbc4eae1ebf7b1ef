// NumberCheck: the first layers of a model with its real weights: what the engine's units compute
// in fp32, beside PlainDecoder in fp64, from the same inputs, one unit after the other; and texts
// packed into one micro-batch beside each alone. Holds one layer's parameters at a time, and slices
// of the embedding and the head. LibTorch's threads; one thread of its own.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/model/model_source.h"
#include "trainer/verify/findings.h"

namespace longshore {

// Token ids, below the vocabulary; each a document.
using Texts = std::vector<std::vector<int64_t>>;

// Of every text, in the plain decoder's numbers, rounded to fp32 after each layer.
struct PlainStates {
  // [text][0]: the embedding's output; [text][1 + l]: layer l's. [T, hidden], fp32.
  std::vector<std::vector<at::Tensor>> hidden;
  std::vector<at::Tensor> last_logits;  // [text]: of its last position, fp64 [vocabulary]
};

// `layers`: how many of the first are run; the head follows on the last of them.
PlainStates check_numbers(const ModelSource& source, const Texts& texts, int64_t layers,
                          Findings& findings);

// What two ways of computing may be apart at a position.
struct Tolerance {
  double of_change = 0.0;  // a share of what was added since `before`
  double of_size = 0.0;    // a share of the value itself
};
// fp32 rounding stays below a tenth of that; a wrong switch is hundreds of it.
inline constexpr Tolerance kSameInputs = {.of_change = 5e-5, .of_size = 1e-6};

// How far `found` is from `wanted` at the worst position, in tolerances; NaN where a value is. Each
// [T, width]; a length that differs is infinitely far.
double excess(const at::Tensor& found, const at::Tensor& wanted, const at::Tensor& before,
              Tolerance tolerance);
// The greater; NaN where either is.
double worse(double a, double b);

struct Judged {
  std::string check, subject;
  std::string if_good, if_bad;  // what is said; by how much goes behind it
};
// A finding: good within the tolerance.
void judge(double excess, const Judged& judged, Findings& findings);

}  // namespace longshore
