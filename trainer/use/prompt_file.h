// PromptFile: reads the rows of a file that `generate --in` names: {"prompt": TEXT} or {"messages":
// [...]}, with other members that the answers carry on. One row is in memory at a time. Owned by
// the command; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/sources/row_source.h"
#include "trainer/use/generator.h"
#include "trainer/use/prompt_writer.h"

namespace longshore {

// Members that a row must not have: those with which an answer is written.
bool is_member_of_answers(const std::string& name);

struct PromptRow {
  int64_t index = 0;  // of the row, from 0; lines of blanks count for nothing
  int64_t line = 0;   // from 1
  Prompt prompt;
  Json carried = Json::object();  // the row's other members, in order
};

class PromptFile {
 public:
  // `writer` must outlive it; `system` is the system message of conversations, which may be empty.
  PromptFile(const std::string& path, const PromptWriter* writer, std::string system);

  // Returns the next row; none at the end. Throws DataError with file, line and remedy.
  std::optional<PromptRow> next();

 private:
  PromptRow parse(const JsonlLine& line) const;
  Prompt write(const Json& row) const;

  JsonlReader reader_;
  const PromptWriter* writer_;
  std::string system_;
  int64_t rows_ = 0;
};

// PromptSurvey holds what a first pass over the file finds, before anything is generated.
struct PromptSurvey {
  int64_t rows = 0;
  int64_t longest = 0;  // tokens of the longest prompt
  uint64_t hash = 0;    // of all prompts' tokens and carried members
};

// Reads all rows. Throws DataError that names the first rows that cannot be answered, such as those
// that problem_of refuses, or for a file without rows.
PromptSurvey survey_prompts(const std::string& path, const PromptWriter& writer,
                            const std::string& system, int64_t max_new_tokens,
                            const PromptLimits& limits);

}  // namespace longshore
