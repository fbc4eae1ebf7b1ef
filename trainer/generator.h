// Generation: continues prompts token by token. Units are streamed through the ring for every
// token, so a model larger than the device can speak too. Compute thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/engine.h"
#include "text/tokenizer.h"

namespace longshore {

struct GenerateRequest {
  std::vector<std::string> prompts;
  int64_t max_new_tokens = 64;
  double temperature = 0.0;  // 0: the likeliest token
  int64_t top_k = 0;         // 0: all tokens
  uint64_t seed = 42;
};

struct Generated {
  std::string prompt;
  std::string text;  // what was added
  int64_t new_tokens = 0;
  bool ended = false;  // by an end-of-text token
};

// ConfigError for a prompt that does not fit the planned positions.
std::vector<Generated> generate(Engine& engine, const Tokenizer& tokenizer,
                                const GenerateRequest& request);

// The token that `scores` (one per token of the vocabulary) give, with the random number of
// (seed, prompt, position). Pure function.
TokenId pick_token(std::span<const float> scores, double temperature, int64_t top_k, uint64_t seed,
                   uint32_t prompt, uint32_t position);

}  // namespace longshore
