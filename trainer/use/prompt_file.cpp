#include "trainer/use/prompt_file.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/hash.h"
#include "base/texts.h"
#include "data/rows/row_format.h"

namespace longshore {
namespace {

constexpr std::array<std::string_view, 6> kAnswerMembers = {"index",  "sample", "text",
                                                            "tokens", "finish", "logprobs"};
constexpr std::array<std::string_view, 4> kAskedMembers = {"prompt", "messages", "tools",
                                                           "chat_template_kwargs"};
// More rows with faults are not named.
constexpr size_t kMostProblems = 10;

std::string place_of_line(const std::string& path, int64_t line) {
  return path + ":" + std::to_string(line) + ": ";
}

}  // namespace

bool is_member_of_answers(const std::string& name) {
  return std::ranges::find(kAnswerMembers, name) != kAnswerMembers.end();
}

PromptFile::PromptFile(const std::string& path, const PromptWriter* writer, std::string system)
    : reader_(path), writer_(writer), system_(std::move(system)) {}

std::optional<PromptRow> PromptFile::next() {
  JsonlLine line;
  do {
    if (!reader_.next(line)) return std::nullopt;
  } while (!line.too_long && line.blank());
  const int64_t index = rows_++;
  try {
    PromptRow row = parse(line);
    row.index = index;
    row.line = line.number;
    return row;
  } catch (const RowProblem& problem) {
    throw DataError(place_of_line(reader_.path(), line.number) + problem.what());
  } catch (const ConfigError& error) {
    throw DataError(place_of_line(reader_.path(), line.number) + error.what());
  }
}

PromptRow PromptFile::parse(const JsonlLine& line) const {
  if (line.too_long) {
    throw RowProblem("the line is longer than " + format_bytes(kMaxLineBytes) + "; shorten it");
  }
  Json parsed;
  try {
    parsed = parse_json(line.text, {}, {});
  } catch (const DataError& error) {
    // The position in an unnamed text starts with ":1: ", its line.
    std::string reason = error.what();
    reason.erase(0, reason.find(": ") + 2);
    throw RowProblem(reason);
  }
  require_object(parsed);
  PromptRow row{.prompt = write(parsed)};
  for (auto& [name, value] : parsed.items()) {
    if (std::ranges::find(kAskedMembers, name) != kAskedMembers.end()) continue;
    if (is_member_of_answers(name)) {
      throw RowProblem("the member \"" + name +
                       "\" would be lost, because each answer has its own; rename it");
    }
    row.carried[name] = std::move(value);
  }
  return row;
}

Prompt PromptFile::write(const Json& row) const {
  const bool text = row.contains("prompt"), messages = row.contains("messages");
  if (text == messages) {
    throw RowProblem("expected either \"prompt\", a text, or \"messages\", a list, found " +
                     (text ? std::string("both") : keys_of(row)));
  }
  if (messages && !writer_->writes_messages()) {
    throw RowProblem("\"messages\" are written by the chat template; add --chat");
  }
  if (messages) return writer_->write_row(row, system_);
  const std::string& prompt = required_text(row["prompt"], "prompt");
  if (!writer_->writes_messages()) return writer_->write(prompt);
  return writer_->write_row({{"messages", Json::array({{{"role", "user"}, {"content", prompt}}})}},
                            system_);
}

PromptSurvey survey_prompts(const std::string& path, const PromptWriter& writer,
                            const std::string& system, int64_t max_new_tokens,
                            const PromptLimits& limits) {
  PromptFile file(path, &writer, system);
  PromptSurvey survey;
  Hasher hasher;
  std::vector<std::string> problems;
  while (problems.size() < kMostProblems) {
    try {
      const std::optional<PromptRow> row = file.next();
      if (!row) break;
      ++survey.rows;
      const std::string problem = problem_of(row->prompt, max_new_tokens, limits);
      if (!problem.empty()) {
        problems.push_back(place_of_line(path, row->line) + problem);
        continue;
      }
      survey.longest = std::max(survey.longest, std::ssize(row->prompt.tokens));
      hasher.update(std::as_bytes(std::span(row->prompt.tokens)));
      hasher.update(json_text(row->carried) + "\n");
    } catch (const DataError& error) {
      // The reader of a damaged file throws the same again.
      if (!problems.empty() && problems.back() == error.what()) break;
      problems.emplace_back(error.what());
    }
  }
  if (!problems.empty()) {
    throw DataError("--in: nothing was generated, because rows cannot be answered:\n" +
                    joined(problems, "\n"));
  }
  if (survey.rows == 0) throw DataError("--in " + path + ": the file has no rows");
  survey.hash = hasher.digest();
  return survey;
}

}  // namespace longshore
