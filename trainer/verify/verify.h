// Checks a Hugging Face directory before a long run uses it: every tensor, tokenizer and
// template, and the numbers of the first layers. Changes nothing. Main thread.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/verify/findings.h"

namespace longshore {

struct VerifyOptions {
  std::string model{};    // a directory, or a hub id in the local cache
  std::string against{};  // the base model; empty: none
  std::string python{};   // a Python with transformers; empty: none
  int64_t layers = 2;     // number of leading layers to run; 0: all
  int64_t tokens = 96;    // length of the longest test text
};

Findings verify_model(const VerifyOptions& options);

}  // namespace longshore
