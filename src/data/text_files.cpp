#include "data/text_files.h"

#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "data/row_source.h"

namespace longshore {
namespace {

constexpr Bytes kMaxTextBytes = kGiB;

void read_rows(const std::string& path, const std::function<void(std::string_view)>& use) {
  JsonlReader reader(path);
  JsonlLine line;
  while (reader.next(line)) {
    if (line.blank() && !line.too_long) continue;
    const std::string where = path + ":" + std::to_string(line.number);
    if (line.too_long) throw DataError(where + ": the line is longer than 16 MiB");
    const Json row = parse_json(line.text, JsonLimits{}, where);
    const auto text = row.is_object() ? row.find("text") : row.end();
    if (!row.is_object() || text == row.end() || !text->is_string()) {
      throw DataError(where + ": expected an object with a string \"text\"");
    }
    use(text->get_ref<const std::string&>());
  }
}

}  // namespace

void for_each_text(const std::vector<std::string>& files,
                   const std::function<void(std::string_view)>& use) {
  for (const std::string& path : files) {
    if (std::filesystem::path(path).extension() == ".jsonl") {
      read_rows(path, use);
    } else {
      use(read_whole_file(path, kMaxTextBytes));
    }
  }
}

}  // namespace longshore
