// model_notes: what a run and its export do otherwise than the files of the model say, for
// `check model`, `check run` and the start of a run. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "trainer/model/model_source.h"

namespace longshore {

// Returns one line for each of: a quantisation that config.json names and plain weights do not
// have, tensors that the index lists and no file has, dropout, layers that predict further tokens
// (MTP), an adapter that lies beside the model's weights, and tokens that the run adds.
std::vector<std::string> model_notes(const ModelSource& source);

}  // namespace longshore
