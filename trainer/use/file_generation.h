// FileGeneration: `generate --in FILE --out FILE`: answers all rows of a file, in order, and goes
// on where an interrupted start stopped. Owned by the command; the engine's thread.
#pragma once

#include <chrono>
#include <string>

#include "base/json.h"
#include "trainer/use/generator.h"
#include "trainer/use/prompt_file.h"

namespace longshore {

struct FileGeneration {
  std::string in, out;
  std::string system;  // message of conversations; empty: none
  GenerateSettings settings = {};
  Json origin = Json::object();  // of the weights, and all else that tokens follow from

  // Returns what the lines of the output follow from (AnswerFile).
  Json settings_of(const PromptSurvey& survey) const;
  // Generates the answers that the output lacks. Throws NonFiniteError if scores are not finite;
  // the answers before are in the file.
  void run(Generator& generator, const PromptWriter& writer, const PromptSurvey& survey) const;
};

// Returns the ids of an answer's tokens, with the one that ended it, and their log-probabilities.
Json logprobs_of(const Answer& answer);
// Returns the line of an answer.
Json line_of(const PromptRow& row, int64_t sample, const Answer& answer, bool with_logps);

// Returns "stop", "length" or "stop_string".
std::string name_of(Finish finish);

// AnswerProgress: says now and then how many answers are there, how fast tokens come, and how long
// the rest will take.
class AnswerProgress {
 public:
  using Clock = std::chrono::steady_clock;

  AnswerProgress(int64_t found, int64_t total);
  // One more answer is written; `tokens` new ones were generated since the start, those of answers
  // that are not written yet included.
  void add(int64_t tokens);
  // Returns how far the work is, and how fast it was: "8 of 8 answers, 512 tokens, 40.0 tokens/s".
  std::string text(int64_t tokens) const;

 private:
  int64_t found_, total_;
  int64_t written_ = 0;
  Clock::time_point begun_ = Clock::now(), said_ = begun_;
};

}  // namespace longshore
