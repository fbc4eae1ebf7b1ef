// Checks the first layers of a model with its real weights. It compares the engine's
// units in fp32 with PlainDecoder in fp64 from the same inputs, unit by unit, and texts packed into
// one micro-batch with each text alone. Holds one layer's parameters at a time, and slices of the
// embedding and the head. One calling thread; LibTorch uses its own threads.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/model/model_source.h"
#include "trainer/verify/findings.h"

namespace longshore {

// Token ids below the vocabulary size. Each text is a document.
using Texts = std::vector<std::vector<int64_t>>;

// PlainStates are the plain decoder's numbers for every text, rounded to fp32 after each layer.
struct PlainStates {
  // hidden[text][0] is the embedding's output, [text][1 + l] layer l's output: [T, hidden], fp32.
  std::vector<std::vector<at::Tensor>> hidden;
  std::vector<at::Tensor> last_logits;  // logits of each text's last position: fp64 [vocabulary]
};

// Runs the first `layers` layers, then the head on the output of the last of them.
PlainStates check_numbers(const ModelSource& source, const Texts& texts, int64_t layers,
                          Findings& findings);

// The allowed distance between two computations at a position.
struct Tolerance {
  double of_change = 0.0;  // share of the change since `before`
  double of_size = 0.0;    // share of the value itself
};
// fp32 rounding stays below a tenth of this; a misread switch is hundreds of times above.
inline constexpr Tolerance kSameInputs = {.of_change = 5e-5, .of_size = 1e-6};

// Returns the distance of `found` from `wanted` at the worst position in units of the tolerance;
// NaN if a value is NaN, infinite if the shapes differ. Each is [T, width].
double excess(const at::Tensor& found, const at::Tensor& wanted, const at::Tensor& before,
              Tolerance tolerance);
// Returns the greater value, or NaN if either is NaN.
double worse(double a, double b);

struct Judged {
  std::string check, subject;
  std::string if_good, if_bad;  // messages; `judge` appends the distance
};
// Adds a result: ok if `excess` is within the tolerance, otherwise failed.
void judge(double excess, const Judged& judged, Findings& findings);

}  // namespace longshore
