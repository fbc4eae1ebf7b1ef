#include "data/rows/data_report.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "base/texts.h"

namespace longshore {
namespace {

using Count = int64_t FileReport::*;

using Counts = std::pair<const char*, Count>;

constexpr std::array<Counts, 8> kCounts = {{{"rows", &FileReport::rows},
                                            {"bad_rows", &FileReport::bad_rows},
                                            {"truncated", &FileReport::truncated},
                                            {"dropped", &FileReport::dropped},
                                            {"split", &FileReport::split},
                                            {"documents", &FileReport::documents},
                                            {"tokens", &FileReport::tokens},
                                            {"trained_tokens", &FileReport::trained_tokens}}};

// These are written only if they are not 0. The report is part of the data's fingerprint, so data
// prepared by earlier versions keep theirs.
constexpr std::array<Counts, 14> kLaterCounts = {
    {{"weightless", &FileReport::weightless},
     {"resampled_rows", &FileReport::resampled_rows},
     {"resampled_tokens", &FileReport::resampled_tokens},
     {"unwritten_calls", &FileReport::unwritten_calls},
     {"unwritten_thoughts", &FileReport::unwritten_thoughts},
     {"unwritten_instructions", &FileReport::unwritten_instructions},
     {"unwritten_texts", &FileReport::unwritten_texts},
     {"unwritten_tools", &FileReport::unwritten_tools},
     {"special_tokens", &FileReport::special_tokens},
     {"chat_prompts", &FileReport::chat_prompts},
     {"json_messages", &FileReport::json_messages},
     {"json_texts", &FileReport::json_texts},
     {"merged_borders", &FileReport::merged_borders},
     {"equal_pairs", &FileReport::equal_pairs}}};

constexpr std::array<Counts, 5> kUnwritten = {
    {{"calls of tools (tool_calls)", &FileReport::unwritten_calls},
     {"thoughts of answers that are trained (reasoning_content, <think>)",
      &FileReport::unwritten_thoughts},
     {"contents of system messages or of results of tools", &FileReport::unwritten_instructions},
     {"contents of the user's or the assistant's messages", &FileReport::unwritten_texts},
     {"tools that may be called (tools)", &FileReport::unwritten_tools}}};

// The cap is for data sets with other member names in every row.
constexpr size_t kMaxUnreadNames = 32;
constexpr const char* kOtherNames = "others";

// Members of other data sets with people's or a model's opinion of an answer.
constexpr std::array kOpinions = {"rating",     "ratings",   "score",    "scores",     "reward",
                                  "accepted",   "accept",    "approved", "liked",      "feedback",
                                  "thumbs",     "vote",      "votes",    "thumbs_up",  "quality",
                                  "preferred",  "verdict",   "correct",  "good",       "is_good",
                                  "is_correct", "judgement", "judgment", "thumbs_down"};

// Returns the members with opinions that rows of this report have and that are not read.
std::string unread_opinions(const FileReport& report) {
  std::string names;
  for (const auto& [name, count] : report.unread) {
    if (std::ranges::find(kOpinions, name) == kOpinions.end()) continue;
    names += (names.empty() ? "" : ", ") + name + " (" + format_count(count) + ")";
  }
  return names;
}

void append_count(std::string& line, int64_t count, const std::string& what) {
  if (count > 0) line += ", " + format_count(count) + " " + what;
}

}  // namespace

void FileReport::add(const FileReport& other) {
  for (const auto& [name, count] : kCounts) this->*count += other.*count;
  for (const auto& [name, count] : kLaterCounts) this->*count += other.*count;
  if (border_piece.empty()) border_piece = other.border_piece;
  longest_row_tokens = std::max(longest_row_tokens, other.longest_row_tokens);
  for (const auto& [name, count] : other.unread) {
    const bool has_place = unread.contains(name) || unread.size() < kMaxUnreadNames;
    unread[has_place ? name : kOtherNames] += count;
  }
}

Json to_json(const FileReport& report) {
  Json object = {{"format", report.format}, {"detected", report.detected}};
  for (const auto& [name, count] : kCounts) object[name] = report.*count;
  for (const auto& [name, count] : kLaterCounts) {
    if (report.*count != 0) object[name] = report.*count;
  }
  if (!report.border_piece.empty()) object["border_piece"] = report.border_piece;
  object["longest_row_tokens"] = report.longest_row_tokens;
  if (!report.unread.empty()) object["unread"] = report.unread;
  return object;
}

FileReport file_report_of(const Json& object, const std::string& origin) {
  FileReport report;
  try {
    report.format = object.at("format").get<std::string>();
    report.detected = object.at("detected").get<bool>();
    for (const auto& [name, count] : kCounts) report.*count = object.at(name).get<int64_t>();
    for (const auto& [name, count] : kLaterCounts) report.*count = object.value(name, int64_t{0});
    report.border_piece = object.value("border_piece", std::string());
    report.longest_row_tokens = object.at("longest_row_tokens").get<int64_t>();
    report.unread = object.value("unread", std::map<std::string, int64_t>());
  } catch (const Json::exception& error) {
    throw DataError(origin + ": the report of the rows is wrong: " + error.what());
  }
  return report;
}

FileReport DataReport::total() const {
  FileReport total;
  for (const FileReport& file : files) {
    total.path += (total.path.empty() ? "" : ", ") + file.path;
    total.add(file);
  }
  return total;
}

FileReport DataReport::sum() const {
  FileReport sum = total();
  if (files.empty()) return sum;
  sum.format = files.front().format;
  sum.detected = files.front().detected;
  for (const FileReport& file : files) {
    if (file.format != sum.format) sum.format = "mixed";
  }
  if (files.size() > 1) sum.path = std::to_string(files.size()) + " files";
  return sum;
}

std::vector<std::string> lines_of(const FileReport& report) {
  std::string line =
      report.path + ": format " + report.format + (report.detected ? " (auto), " : ", ");
  line += format_count(report.rows) + " rows, " + format_count(report.documents) + " documents, " +
          format_count(report.tokens) + " tokens, " + format_count(report.trained_tokens) +
          " of them trained, longest row " + format_count(report.longest_row_tokens) + " tokens";
  append_count(line, report.bad_rows, "bad rows skipped");
  append_count(line, report.truncated, "truncated");
  append_count(line, report.dropped, "dropped as too long");
  append_count(line, report.split, "split");
  append_count(line, report.weightless, "left out with the weight 0");
  std::vector<std::string> lines = {line};
  if (report.resampled_rows > 0) {
    lines.push_back(
        report.path + ": " + format_count(report.resampled_rows) +
        " conversations are several samples each, with " + format_count(report.resampled_tokens) +
        " tokens more: the chat template writes earlier answers differently when messages follow, "
        "and each answer is trained after the text that the model sees when it generates it");
  }
  if (report.chat_prompts > 0) {
    lines.push_back(report.path + ": the chat template writes " +
                    format_count(report.chat_prompts) +
                    " rows with an instruction (data.prompt_template = \"auto\"); \"alpaca\" "
                    "writes them as Alpaca's text");
  }
  if (report.json_messages > 0) {
    lines.push_back(report.path + ": the messages of " + format_count(report.json_messages) +
                    " rows are JSON text, which is read as the messages");
  }
  if (report.special_tokens > 0) {
    lines.push_back(report.path + ": the rows' own texts spell " +
                    format_count(report.special_tokens) +
                    " special tokens; data.special_tokens says how they are read");
  }
  if (!report.unread.empty()) {
    const std::string names = joined(report.unread, ", ", [](const auto& unread) {
      return unread.first + " (" + format_count(unread.second) + ")";
    });
    lines.push_back(report.path + ": members that are not read: " + names);
  }
  return lines;
}

std::vector<std::string> warnings_of(const FileReport& report) {
  std::vector<std::string> warnings;
  for (const auto& [what, count] : kUnwritten) {
    if (report.*count == 0) continue;
    warnings.push_back(report.path + ": the chat template does not write " +
                       format_count(report.*count) + " " + what +
                       ": the model does not see them; data.chat_template names another template");
  }
  const auto warn = [&](int64_t count, const std::string& what) {
    if (count > 0) warnings.push_back(report.path + ": " + format_count(count) + " " + what);
  };
  warn(report.json_texts,
       "rows hold messages as JSON text beside plain text, so the JSON is trained as a text; give "
       "the messages as lists to train a conversation");
  const std::string piece =
      report.border_piece.empty() ? "" : " (the first is \"" + report.border_piece + "\")";
  warn(report.merged_borders,
       "rows have a token that joins the end of the prompt with the start of the answer" + piece +
           ": a prompt that ends there is tokenised otherwise at inference; most often a space at "
           "the end of the prompt belongs to the answer");
  warn(report.equal_pairs, "pairs have two equal answers, from which nothing can be learned");
  const bool answers = report.format == "messages" || report.format == "prompt-completion";
  const std::string opinions = answers ? unread_opinions(report) : "";
  if (!opinions.empty()) {
    warnings.push_back(report.path +
                       ": members that may judge the answers are not read: " + opinions +
                       "; good and bad answers are trained alike. Leave out the bad "
                       "ones, or give train.loss = \"kto\" rows with label true and false");
  }
  return warnings;
}

std::vector<std::string> DataReport::warnings() const {
  std::vector<std::string> warnings;
  for (const FileReport& file : files) {
    for (std::string& warning : warnings_of(file)) warnings.push_back(std::move(warning));
  }
  return warnings;
}

std::vector<std::string> DataReport::lines() const {
  std::vector<std::string> lines;
  for (const FileReport& file : files) {
    for (std::string& line : lines_of(file)) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace longshore
