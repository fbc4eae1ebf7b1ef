#include "data/file_kind.h"

#include <algorithm>

#include "base/errors.h"
#include "base/texts.h"
#include "data/jsonl_reader.h"
#include "data/row_block.h"

namespace longshore {
namespace {

constexpr const char* kExpected =
    "; expected JSONL: an object such as {\"text\": \"...\"} per line";

// Returns the first line that is not blank; its number is 0 if there is none.
JsonlLine first_line(JsonlReader& reader) {
  JsonlLine line;
  while (reader.next(line)) {
    if (!line.blank() || line.too_long) return line;
  }
  return {};
}

bool looks_like_table(std::string_view line) {
  const auto separators = std::count_if(line.begin(), line.end(), [](char letter) {
    return letter == ',' || letter == '\t' || letter == ';';
  });
  return separators > 0 && line.find_first_of("{}[]") == std::string_view::npos;
}

}  // namespace

std::string unknown_kind(const std::string& path) {
  JsonlReader reader(path);
  const JsonlLine line = first_line(reader);
  if (line.number == 0 || line.too_long) return {};
  const std::string place = path + ":" + std::to_string(line.number) + ": ";
  if (const auto bad = first_invalid_utf8(line.text)) {
    return place + "not UTF-8 at byte " + std::to_string(*bad) +
           " of the line; convert the file to UTF-8";
  }
  const std::string_view text = line.text.substr(line.text.find_first_not_of(" \t\r"));
  if (text == "{") {
    return place + "an object over several lines" + kExpected +
           "; write it so once: jq -c . FILE > rows.jsonl";
  }
  if (looks_like_table(text)) {
    return place + "the file looks like a table (CSV)" + kExpected +
           "; write it so once: datasets.Dataset.from_csv(FILE).to_json(\"rows.jsonl\")";
  }
  if (!text.starts_with('{')) {
    return place + "the line is no JSON object" + kExpected +
           "; a file of plain text is read as one document where its name ends in .txt";
  }
  return {};
}

void refuse_unknown_format(const std::string& path, const RowFormatOptions& options) {
  const std::string kind = unknown_kind(path);
  if (!kind.empty()) throw DataError(kind);
  JsonlReader reader(path);
  const JsonlLine line = first_line(reader);
  if (line.number == 0) throw DataError(path + ": holds no rows");
  try {
    detect_format(parse_row(line.text, line.too_long, line.ended), options);
  } catch (const RowProblem& problem) {
    throw DataError(path + ":" + std::to_string(line.number) + ": " + problem.what());
  }
  throw DataError(path + ": no row shows a known format");
}

}  // namespace longshore
