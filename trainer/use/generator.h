// Generation: continues prompts token by token. Units are streamed through the ring for every
// token, so a model larger than the device can speak too. The thread that calls the
// engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/engine/engine.h"
#include "text/tokenizer.h"

namespace longshore {

struct Sampling {
  double temperature = 0.0;  // 0: the likeliest token
  int64_t top_k = 0;         // 0: all tokens
  double top_p = 1.0;        // of the likeliest tokens that have this share together; 1: all
  uint64_t seed = 42;
};

struct GenerateRequest {
  std::vector<std::string> prompts;
  int64_t max_new_tokens = 64;
  int64_t longest = 0;  // tokens of a text at most, new ones included: data.max_tokens
  Sampling sampling = {};
};

struct Generated {
  std::string prompt;
  std::string text;  // what was added
  int64_t new_tokens = 0;
  bool ended = false;      // by an end-of-text token
  bool nonfinite = false;  // the scores were not numbers: the text ends there
};

// Any number of prompts: as many at a time as the planned positions hold. ConfigError for a prompt
// that is longer than a sequence, or that has tokens beyond the model's rows.
std::vector<Generated> generate(Engine& engine, const Tokenizer& tokenizer,
                                const GenerateRequest& request);

// The token that `scores` (one per token of the vocabulary) give, with the random number of
// (seed, prompt, position). Pure function.
TokenId pick_token(std::span<const float> scores, const Sampling& sampling, uint32_t prompt,
                   uint32_t position);

}  // namespace longshore
