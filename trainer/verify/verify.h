// Verify: a look at a Hugging Face directory before a long run is spent on it: every tensor, the
// tokenizer and the template, the numbers of the first layers. Reads, and changes nothing. Main
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/verify/findings.h"

namespace longshore {

struct VerifyOptions {
  std::string model{};    // a directory, or a hub id in the local cache
  std::string against{};  // the model that it was made from; empty: none
  std::string python{};   // a Python with transformers; empty: none
  int64_t layers = 2;     // the first so many are run; 0: all
  int64_t tokens = 96;    // of the longest text that they are run on
};

Findings verify_model(const VerifyOptions& options);

}  // namespace longshore
