// Workspace: bounds on what LibTorch allocates on the CPU while a decoder's unit runs. They follow
// the code of differentiable_ops.cpp, document_attention.cpp and head_unit.cpp tensor by tensor.
// Pure functions.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "model/arch_spec.h"
#include "model/unit.h"
#include "shard/unit_spec.h"

namespace longshore {

struct WorkspaceQuery {
  int64_t positions = 0;         // of a micro-batch
  int64_t longest_document = 0;  // in it
  DType compute = DType::kF32;
  int threads = 1;  // compute threads
};

// Returned tensors are counted: outputs, gradients of inputs and of parameters. What a GradSink
// allocates is not. Frozen parameters of `spec` have no gradient.
UnitWorkspace decoder_workspace(const ArchSpec& arch, const ModelSpec& spec, UnitId id,
                                const WorkspaceQuery& query);

}  // namespace longshore
