// Generator: continues prompts as text, with the states that the engine's plan has for sequences
// (Decoder): stop tokens and stop strings, several answers to a prompt, text while it grows. Owned
// by the command or the run; the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "offload/engine/engine.h"
#include "text/tokenizer.h"
#include "trainer/use/answer_text.h"
#include "trainer/use/decoder.h"

namespace longshore {

struct Prompt {
  std::string text;  // as the user wrote it, for messages and output
  std::vector<TokenId> tokens;
};

struct GenerateSettings {
  std::vector<TokenId> stops = {};             // tokens that end an answer
  std::vector<std::string> stop_strings = {};  // texts before which an answer ends; none is empty
  int64_t max_new_tokens = 64;
  int64_t samples = 1;  // answers to each prompt
  Sampling sampling = {};
  bool with_logps = false;
  // Called with the text that an answer has gained. Answers are numbered in the order of prompts,
  // with all samples of a prompt in a row. May be empty.
  std::function<void(int64_t answer, const std::string& piece)> on_text = {};
};

struct Answer {
  std::string text;
  std::string rest;  // what on_text was not called with
  // The answer's tokens, with the one of `stops` that ended it, and what the model gave them.
  std::vector<TokenId> tokens;
  std::vector<float> logps;
  int64_t new_tokens = 0;           // without the one that ended it
  Finish finish = Finish::kLength;  // kText: by a stop string

  // Returns whether the answer ended by itself, neither cut by max_new_tokens nor without a token.
  bool ended() const { return finish == Finish::kStop || finish == Finish::kText; }
};

// The most tokens of a sequence and the tokens that the model has.
struct PromptLimits {
  int64_t longest = 0;
  int64_t vocabulary = 0;
};
// Returns the number of rows of the model's embedding.
int64_t vocabulary_of(const ModelSpec& spec);
// Returns why the model cannot continue the prompt by this number of tokens; empty if it can.
std::string problem_of(const Prompt& prompt, int64_t max_new_tokens, const PromptLimits& limits);

class Generator {
 public:
  // The engine's plan decodes sequences. All arguments must outlive the generator. States of ended
  // sequences are kept for prompts that begin alike, so nothing may change the weights or train
  // between two calls.
  Generator(Engine* engine, const Model* model, const Tokenizer* tokenizer);

  // Continues the prompts of `next` until it returns none. Gives the answers to `done` in order,
  // each as soon as it and all before it have ended. Answers before `first` are not generated.
  // Throws ConfigError for a prompt that problem_of refuses.
  using NextPrompt = std::function<std::optional<Prompt>()>;
  using Done = std::function<void(int64_t answer, Answer)>;
  void run(const GenerateSettings& settings, const NextPrompt& next, const Done& done,
           int64_t first = 0);
  // Continues prompts and returns all answers, in order.
  std::vector<Answer> run(const GenerateSettings& settings, const std::vector<Prompt>& prompts);

  const Decoder::Work& work() const { return decoder_.work(); }

 private:
  AnswerText& text_of(int64_t answer, const GenerateSettings& settings);
  Answer finished(int64_t answer, Decoded decoded, const GenerateSettings& settings);

  const Tokenizer* tokenizer_;
  PromptLimits limits_;
  Decoder decoder_;
  std::map<int64_t, AnswerText> texts_;  // of unfinished answers, by number
};

// The prompts of a run's evaluations with their settings.
struct SampleRequest {
  std::vector<Prompt> prompts;
  GenerateSettings settings;
};

}  // namespace longshore
