// document_loss: a loss over pairs of documents, from the losses of a batch's trained positions.
// What a whole head and the last piece of one share. Pure function; compute thread only.
#pragma once

#include <ATen/ATen.h>

#include "model/unit.h"

namespace longshore {

// `trained` are the trained positions of the batch, `losses` (fp32) their negative
// log-probabilities. Sums each document's in fp64, in order, and fills all of `result` except
// grad_in. Returns the factor of each trained position's loss in the sum of the pairs' losses, fp32
// on the CPU. HOST WAIT, on a GPU: gradients depend on sums over whole documents.
at::Tensor apply_preference(const MicroBatch& batch, const at::Tensor& trained,
                            const at::Tensor& losses, LossUnit::Result& result);

}  // namespace longshore
