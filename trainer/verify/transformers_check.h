// TransformersCheck: the plain decoder's numbers beside those of transformers, run by the user's
// own Python over the same directory, cut to its first layers. What it finds is a switch of
// config.json that is read otherwise here. One thread, which waits for the other program.
#pragma once

#include <string>

#include "trainer/verify/findings.h"
#include "trainer/verify/number_check.h"

namespace longshore {

// `python`: a program with torch, transformers and safetensors. `directory`: of the model.
void check_transformers(const std::string& python, const std::string& directory, const Texts& texts,
                        const PlainStates& states, Findings& findings);

}  // namespace longshore
