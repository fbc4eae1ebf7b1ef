// Continues prompts token by token. All units pass through the device's slots for every
// token, so the model may be larger than the device. Called by the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
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

struct Prompt {
  std::string text;  // as the user wrote it, for messages and output
  std::vector<TokenId> tokens;
};

struct GenerateRequest {
  std::vector<Prompt> prompts;
  std::vector<TokenId> stops;  // tokens that end a text
  int64_t max_new_tokens = 64;
  int64_t longest = 0;  // limit of tokens per text, with new ones: data.max_tokens
  Sampling sampling = {};
  // Called after each new token with the prompt's index and all its new tokens; may be empty.
  std::function<void(size_t prompt, std::span<const TokenId> added)> on_token = {};
};

struct Generated {
  std::string prompt;  // Prompt::text
  std::string text;    // the new text
  int64_t new_tokens = 0;
  bool ended = false;      // by an end-of-text token or non-finite scores
  bool nonfinite = false;  // non-finite scores ended the text
};

// Continues any number of prompts, in batches of at most the plan's positions. Throws ConfigError
// for a prompt that is too long, or that has tokens outside the model's vocabulary.
std::vector<Generated> generate(Engine& engine, const Tokenizer& tokenizer,
                                const GenerateRequest& request);

// TextStream: the text of a growing list of tokens in pieces, for output during generation. A
// character that several tokens write is returned whole.
class TextStream {
 public:
  // `tokenizer` must outlive it.
  explicit TextStream(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  // Returns the text that is new since the last call. `added` has all tokens generated so far.
  std::string take(std::span<const TokenId> added);
  // Returns the rest of the whole text.
  std::string rest(const std::string& text);

 private:
  const Tokenizer* tokenizer_;
  size_t returned_ = 0;  // bytes
};

// Picks a token by `scores` (one per token of the vocabulary), with the random number of
// (seed, prompt, position). A pure function.
TokenId pick_token(std::span<const float> scores, const Sampling& sampling, uint32_t prompt,
                   uint32_t position);

}  // namespace longshore
