#include "trainer/use/file_generation.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/measurement.h"
#include "base/texts.h"
#include "trainer/use/answer_file.h"

namespace longshore {
namespace {

constexpr std::chrono::seconds kBetweenLines{10};

}  // namespace

std::string name_of(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kText:
      return "stop_string";
    case Finish::kNonFinite:
      break;
  }
  return "nonfinite";
}

Json logprobs_of(const Answer& answer) {
  return {{"tokens", answer.tokens}, {"values", answer.logps}};
}

Json line_of(const PromptRow& row, int64_t sample, const Answer& answer, bool with_logps) {
  Json line = {{"index", row.index}};
  for (const auto& [name, value] : row.carried.items()) line[name] = value;
  line["sample"] = sample;
  line["text"] = answer.text;
  line["tokens"] = answer.new_tokens;
  line["finish"] = name_of(answer.finish);
  if (with_logps) line["logprobs"] = logprobs_of(answer);
  return line;
}

Json FileGeneration::settings_of(const PromptSurvey& survey) const {
  Json all = {{"format", 1}};
  all.update(origin);
  all["prompts"] = hash_text(survey.hash);
  all["rows"] = survey.rows;
  all["samples"] = settings.samples;
  all["max_new_tokens"] = settings.max_new_tokens;
  all["temperature"] = settings.sampling.temperature;
  all["top_k"] = settings.sampling.top_k;
  all["top_p"] = settings.sampling.top_p;
  all["min_p"] = settings.sampling.min_p;
  all["seed"] = settings.sampling.seed;
  all["stop"] = settings.stop_strings;
  all["stop_tokens"] = settings.stops;
  all["logprobs"] = settings.with_logps;
  return all;
}

void FileGeneration::run(Generator& generator, const PromptWriter& writer,
                         const PromptSurvey& survey) const {
  AnswerFile answers(out, settings_of(survey), settings.samples);
  const int64_t total = survey.rows * settings.samples, found = answers.found();
  if (found >= total) {
    log_info("nothing left to do: " + out + " has all " + format_count(total) + " answers");
    return;
  }
  if (found > 0) {
    log_info(out + " has " + format_count(found) + " of " + format_count(total) +
             " answers; the others follow");
  }
  PromptFile file(in, &writer, system);
  std::map<int64_t, PromptRow> rows;  // with unwritten answers
  const auto next = [&]() -> std::optional<Prompt> {
    std::optional<PromptRow> row = file.next();
    if (!row) return std::nullopt;
    Prompt prompt = std::move(row->prompt);
    row->prompt = {};
    const int64_t index = row->index;
    if ((index + 1) * settings.samples > found) rows.emplace(index, std::move(*row));
    return prompt;
  };
  AnswerProgress progress(found, total);
  const auto done = [&](int64_t number, const Answer& answer) {
    const auto row = rows.find(number / settings.samples);
    if (row == rows.end()) throw DataError("--in " + in + ": the file has changed meanwhile");
    if (answer.finish == Finish::kNonFinite) {
      throw NonFiniteError("row " + std::to_string(row->first + 1) + " of " + in +
                           ": the model's scores are not finite; its weights hold NaN or infinite "
                           "values, or overflow");
    }
    const int64_t sample = number % settings.samples;
    answers.add(line_of(row->second, sample, answer, settings.with_logps));
    if (sample + 1 == settings.samples) rows.erase(row);
    progress.add(generator.work().tokens);
  };
  generator.run(settings, next, done, found);
  answers.sync();
  log_info(out + ": " + progress.text(generator.work().tokens) +
           "; prompts: " + format_count(generator.work().prompt_rows) + " tokens");
}

AnswerProgress::AnswerProgress(int64_t found, int64_t total) : found_(found), total_(total) {}

void AnswerProgress::add(int64_t tokens) {
  ++written_;
  const Clock::time_point now = Clock::now();
  if (now - said_ < kBetweenLines || found_ + written_ == total_) return;
  said_ = now;
  const double left = static_cast<double>(total_ - found_ - written_);
  const double seconds = seconds_since(begun_) / static_cast<double>(written_) * left;
  log_info(text(tokens) + ", " + format_duration(seconds) + " left");
}

std::string AnswerProgress::text(int64_t tokens) const {
  const double rate = static_cast<double>(tokens) / std::max(1e-9, seconds_since(begun_));
  return format_count(found_ + written_) + " of " + format_count(total_) + " answers, " +
         format_count(tokens) + " tokens, " + formatted("%.1f tokens/s", rate);
}

}  // namespace longshore
