// Sampling: draws the next token of each sequence from the model's scores. A draw depends on the
// row of scores, the settings and the DrawKey alone, so neither on the rows beside it nor on the
// number of threads. Pure functions, any thread.
//
// The cuts are those of transformers, in its order: temperature, top_k, top_p, min_p. Each leaves
// the tokens of the highest scores; among tokens of equal scores top_p takes those of lower ids
// first, and top_k takes all of them, as transformers does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace longshore {

struct Sampling {
  double temperature = 0.0;  // 0: the likeliest token
  int64_t top_k = 0;         // 0: all tokens
  double top_p = 1.0;        // total probability of the likeliest tokens to choose from; 1: all
  double min_p = 0.0;        // least probability, as a part of the likeliest token's; 0: all
  uint64_t seed = 42;
};

// The place of a draw: with Sampling::seed it gives the random bits.
struct DrawKey {
  uint64_t prompt = 0;
  uint32_t sample = 0;    // of the answers to the prompt
  uint32_t position = 0;  // of the drawn token in the text
};

struct Drawn {
  TokenId token = -1;
  // Log-probability of the token by the model: before temperature and cuts. 0 unless asked for.
  float logp = 0.0f;
  bool finite = true;  // false: the scores are not all finite, and no token was drawn
};

// Draws from one row of scores, with one score for each token of the vocabulary.
Drawn draw_token(std::span<const float> scores, const Sampling& sampling, const DrawKey& key,
                 bool with_logp);

// Draws from each row of fp32 `scores` [rows, vocabulary], for which `keys` has one element. Of
// scores on a GPU only what the draw needs is copied to the host: the likeliest token, or the
// top_k likeliest; for other settings, and for log-probabilities, whole rows.
std::vector<Drawn> draw_tokens(const at::Tensor& scores, std::span<const DrawKey> keys,
                               const Sampling& sampling, bool with_logps);

}  // namespace longshore
