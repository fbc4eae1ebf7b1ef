#include "hf/dataset_card.h"

#include <optional>
#include <string_view>

#include "base/errors.h"
#include "base/json.h"

namespace longshore {
namespace {

constexpr size_t kMaxDepth = 8;

struct Line {
  size_t indent = 0;
  std::string text;
};

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") + 1 - first));
}

// Returns the lines below `configs:` in the YAML between two lines of dashes.
std::vector<Line> config_lines(std::string_view card) {
  std::vector<Line> lines;
  bool head = false, inside = false;
  while (!card.empty()) {
    const size_t end = std::min(card.find('\n'), card.size());
    const std::string_view line = card.substr(0, end);
    card.remove_prefix(std::min(end + 1, card.size()));
    const std::string text = trimmed(line);
    if (text == "---") {
      if (head) break;
      head = true;
      continue;
    }
    if (!head) break;
    if (text.empty() || text.front() == '#') continue;
    const size_t indent = line.find_first_not_of(' ');
    if (indent == 0 && text.front() != '-') {
      inside = text == "configs:";
      continue;
    }
    if (inside) lines.push_back({indent, text});
  }
  return lines;
}

// Parses the YAML subset that cards use: nested lists and members, plain and quoted words, and
// lists in brackets.
class CardParser {
 public:
  CardParser(std::vector<Line> lines, const std::string& origin)
      : lines_(std::move(lines)), origin_(origin) {}

  Json parse() {
    if (lines_.empty()) return Json::array();
    Json value = block(lines_.front().indent, 0);
    if (at_ < lines_.size()) refuse();
    return value;
  }

 private:
  [[noreturn]] void refuse() const {
    const std::string line = at_ < lines_.size() ? ", \"" + lines_[at_].text + "\"" : "";
    throw DataError(origin_ + ": its configs are written in a way that is not read" + line +
                    "; name the data set's files in place of its id");
  }

  bool is_element(const Line& line) const {
    return line.text == "-" || line.text.starts_with("- ");
  }

  Json block(size_t indent, size_t depth) {
    if (depth > kMaxDepth) refuse();
    return is_element(lines_[at_]) ? list(indent, depth) : members(indent, depth);
  }

  Json list(size_t indent, size_t depth) {
    Json elements = Json::array();
    while (at_ < lines_.size() && lines_[at_].indent == indent && is_element(lines_[at_])) {
      Line& line = lines_[at_];
      const size_t inner = std::min(line.text.find_first_not_of(' ', 1), line.text.size());
      if (inner == line.text.size()) refuse();
      if (!member_name(line.text.substr(inner))) {
        elements.push_back(word(line.text.substr(inner)));
        ++at_;
        continue;
      }
      line.indent += inner;
      line.text.erase(0, inner);
      elements.push_back(block(line.indent, depth + 1));
    }
    return elements;
  }

  static std::optional<std::string> member_name(const std::string& text) {
    if (text.front() == '"' || text.front() == '\'' || text.front() == '[' || text.front() == '{') {
      return std::nullopt;
    }
    const size_t colon = text.find(':');
    if (colon == std::string::npos) return std::nullopt;
    if (colon + 1 < text.size() && text[colon + 1] != ' ') return std::nullopt;
    return text.substr(0, colon);
  }

  Json members(size_t indent, size_t depth) {
    Json object = Json::object();
    while (at_ < lines_.size() && lines_[at_].indent == indent && !is_element(lines_[at_])) {
      const std::optional<std::string> name = member_name(lines_[at_].text);
      if (!name) refuse();
      const std::string rest = trimmed(std::string_view(lines_[at_].text).substr(name->size() + 1));
      if (!rest.empty()) {
        object[*name] = word(rest);
        ++at_;
        continue;
      }
      ++at_;
      // A list may have the same indentation as its member's name.
      const bool below =
          at_ < lines_.size() && (lines_[at_].indent > indent ||
                                  (lines_[at_].indent == indent && is_element(lines_[at_])));
      object[*name] = below ? block(lines_[at_].indent, depth + 1) : Json(nullptr);
    }
    return object;
  }

  // `inside` means inside a bracketed list, which may not contain another list.
  Json word(const std::string& text, bool inside = false) const {
    const char first = text.front();
    if (first == '[') {
      if (text.back() != ']' || text.size() < 2 || inside) refuse();
      Json elements = Json::array();
      std::string_view rest(text);
      rest = rest.substr(1, rest.size() - 2);
      while (!trimmed(rest).empty()) {
        const size_t comma = std::min(rest.find(','), rest.size());
        const std::string element = trimmed(rest.substr(0, comma));
        if (element.empty()) refuse();
        elements.push_back(word(element, true));
        rest.remove_prefix(std::min(comma + 1, rest.size()));
      }
      return elements;
    }
    if (first == '"' || first == '\'') {
      if (text.size() < 2 || text.back() != first || text.find('\\') != std::string::npos) refuse();
      return text.substr(1, text.size() - 2);
    }
    if (first == '{' || first == '|' || first == '>' || first == '&' || first == '!') refuse();
    return trimmed(std::string_view(text).substr(0, text.find(" #")));
  }

  std::vector<Line> lines_;
  const std::string& origin_;
  size_t at_ = 0;
};

std::vector<std::string> words_of(const Json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  return value.get<std::vector<std::string>>();
}

DatasetConfig config_of(const Json& entry) {
  DatasetConfig config;
  config.name = entry.value("config_name", "default");
  config.folder = entry.value("data_dir", "");
  config.is_default = config.name == "default" || entry.value("default", "") == "true";
  const auto files = entry.find("data_files");
  if (files == entry.end() || files->is_null()) return config;
  if (files->is_array() && !files->empty() && files->front().is_object()) {
    for (const Json& split : *files) {
      config.splits.push_back({split.at("split").get<std::string>(), words_of(split.at("path"))});
    }
  } else if (files->is_object()) {
    for (const auto& [name, paths] : files->items()) {
      config.splits.push_back({name, words_of(paths)});
    }
  } else {
    config.splits.push_back({"", words_of(*files)});
  }
  return config;
}

}  // namespace

std::vector<DatasetConfig> dataset_configs(const std::string& card, const std::string& origin) {
  const Json read = CardParser(config_lines(card), origin).parse();
  std::vector<DatasetConfig> configs;
  try {
    for (const Json& entry : read) configs.push_back(config_of(entry));
  } catch (const Json::exception&) {
    throw DataError(origin +
                    ": its configs are not as data sets' are; name the data set's files "
                    "in place of its id");
  }
  return configs;
}

}  // namespace longshore
