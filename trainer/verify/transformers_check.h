// Compares the plain decoder's numbers with those of transformers, which the
// user's Python runs on the same directory cut to its first layers. It reveals misread switches of
// config.json. One thread, which waits for the Python process.
#pragma once

#include <string>

#include "trainer/verify/findings.h"
#include "trainer/verify/number_check.h"

namespace longshore {

// `python` is an interpreter with torch, transformers and safetensors; `directory` is the model's.
void check_transformers(const std::string& python, const std::string& directory, const Texts& texts,
                        const PlainStates& states, Findings& findings);

}  // namespace longshore
