// TensorCheck: checks the values of every tensor of a model without another model: finite, not all
// equal, and of similar size as the same matrix in other layers. Reads the files once in bounded
// chunks on all cores.
#pragma once

#include "trainer/model/model_source.h"
#include "trainer/verify/findings.h"

namespace longshore {

// A matrix is unusual if its root mean square differs by this factor from the median over layers.
// Layers do differ, so smaller factors can only be detected against another model.
inline constexpr double kOddScale = 8.0;

void check_tensors(const ModelSource& source, Findings& findings);

// Compares every tensor with the hash that the export recorded. Does nothing for a directory that
// no export wrote.
void check_exported(const ModelSource& source, Findings& findings);

}  // namespace longshore
