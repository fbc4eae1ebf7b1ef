// Generator: continues prompts token by token. All units pass through the device's slots for every
// token, so the model may be larger than the device. Called by the engine's thread.
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
  double top_p = 1.0;        // total probability of the likeliest tokens to choose from; 1: all
  uint64_t seed = 42;
};

struct GenerateRequest {
  std::vector<std::string> prompts;
  int64_t max_new_tokens = 64;
  int64_t longest = 0;  // limit of tokens per text, with new ones: data.max_tokens
  Sampling sampling = {};
};

struct Generated {
  std::string prompt;
  std::string text;  // the new text
  int64_t new_tokens = 0;
  bool ended = false;      // by an end-of-text token or non-finite scores
  bool nonfinite = false;  // non-finite scores ended the text
};

// Continues any number of prompts, in batches of at most the plan's positions. Throws ConfigError
// for a prompt that is too long, or that has tokens outside the model's vocabulary.
std::vector<Generated> generate(Engine& engine, const Tokenizer& tokenizer,
                                const GenerateRequest& request);

// Picks a token by `scores` (one per token of the vocabulary), with the random number of
// (seed, prompt, position). A pure function.
TokenId pick_token(std::span<const float> scores, const Sampling& sampling, uint32_t prompt,
                   uint32_t position);

}  // namespace longshore
