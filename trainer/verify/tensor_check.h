// TensorCheck: the values of every tensor of a model, read once from its files: finite, not all the
// same, and about as large as those of the same part in other layers. Needs no other model. Reads
// in bounded chunks on all cores.
#pragma once

#include "trainer/model/model_source.h"
#include "trainer/verify/findings.h"

namespace longshore {

// A matrix whose root mean square is so many times the median of its part over the layers, or that
// much below it, is odd. Layers do differ, so a smaller factor needs another model to be seen.
inline constexpr double kOddScale = 8.0;

void check_tensors(const ModelSource& source, Findings& findings);

// Compares every tensor with the hash that the export of the directory listed; nothing for a
// directory that no export wrote.
void check_exported(const ModelSource& source, Findings& findings);

}  // namespace longshore
