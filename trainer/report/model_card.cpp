#include "trainer/report/model_card.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <vector>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "base/texts.h"
#include "model/parameters/adapter.h"
#include "trainer/directory/run_directory.h"
#include "trainer/metrics/metrics.h"
#include "trainer/report/page.h"

namespace longshore {
namespace {

// Escapes Markdown in untrusted text.
std::string plain(const std::string& text) {
  constexpr std::string_view kMarks = "\\`*[]<>|#";
  std::string out;
  for (const char letter : printable(text, 300)) {
    if (kMarks.find(letter) != std::string_view::npos) out += '\\';
    out += letter;
  }
  return out;
}

// Formats untrusted text as code in a table cell.
std::string code(const std::string& text) {
  if (text.empty()) return "";
  std::string out;
  for (const char letter : printable(text, 300)) {
    if (letter == '|') out += '\\';
    out += letter == '`' ? '\'' : letter;
  }
  return "`" + out + "`";
}

using Rows = std::vector<std::vector<std::string>>;

// `head` and `rows` contain Markdown.
std::string markdown_table(const std::vector<std::string>& head, const Rows& rows) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& one : cells) text += " " + one + " |";
    return text + "\n";
  };
  std::string text = line(head) + "|";
  for (size_t i = 0; i < head.size(); ++i) text += "---|";
  text += "\n";
  for (const auto& row : rows) text += line(row);
  return text;
}

std::string number(const char* pattern, double value) {
  if (!std::isfinite(value)) return "";
  return formatted(pattern, value);
}

std::string loss_text(double value) {
  return std::isfinite(value) ? format_loss(value) : "";
}

// Returns the base card's front matter lines that also hold for the new model; simple values only.
std::string inherited(const std::string& card) {
  constexpr std::array<std::string_view, 4> kKeys = {
      "license: ", "license_name: ", "license_link: ", "language: "};
  std::istringstream lines(card);
  std::string line, kept;
  if (!std::getline(lines, line) || !line.starts_with("---")) return "";
  while (std::getline(lines, line) && !line.starts_with("---")) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    const bool plain = std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; });
    const bool named =
        std::ranges::any_of(kKeys, [&line](std::string_view key) { return line.starts_with(key); });
    if (plain && named) kept += line + "\n";
  }
  return kept;
}

std::vector<ChartPoint> until(const std::vector<ChartPoint>& points, Step step) {
  std::vector<ChartPoint> kept;
  for (const ChartPoint& point : points) {
    if (point.x <= static_cast<double>(step.value)) kept.push_back(point);
  }
  return kept;
}

std::string figures(const RunRecord& run, Step step) {
  constexpr size_t kLastSteps = 20;
  Rows rows = {{"steps", format_count(step.value)}};
  const auto add = [&rows](const std::string& name, const std::string& value) {
    if (!value.empty()) rows.push_back({name, value});
  };
  const auto of = [&](const char* key) { return until(run.of(key), step); };
  add("epochs", number("%.3f", last_of(of("epoch"))));
  add("tokens seen", format_count(static_cast<int64_t>(sum_of(of("tokens")))));
  std::vector<ChartPoint> losses = of("loss");
  const size_t last = std::min(losses.size(), kLastSteps);
  losses.erase(losses.begin(), losses.end() - static_cast<std::ptrdiff_t>(last));
  add("training loss, median of the last " + std::to_string(last) + " steps",
      loss_text(median_of(losses)));
  add("evaluation loss", loss_text(last_of(of("eval/loss"))));
  add("evaluation perplexity", number("%.2f", last_of(of("eval/perplexity"))));
  add("evaluation token accuracy", number("%.4f", last_of(of("eval/token_accuracy"))));
  add("tokens per second, median", number("%.0f", median_of(of("tokens_per_second"))));
  add("hours in steps", number("%.2f", sum_of(of("seconds")) / 3600.0));
  return markdown_table({"", ""}, rows);
}

// Lists data files by name and hash, without local directories.
std::string data_of(const RunRecord& run) {
  std::string text;
  if (!run.data.is_object()) return text;
  for (const auto& [use, set] : run.data.items()) {
    if (!set.is_object() || !set.contains("files") || !set["files"].is_array()) continue;
    Rows rows;
    for (const Json& file : set["files"]) {
      if (!file.is_object()) continue;
      const auto member = [&file](const char* key) -> std::string {
        const auto found = file.find(key);
        if (found == file.end()) return "";
        if (found->is_number_integer()) return format_count(found->get<int64_t>());
        return found->is_string() ? plain(found->get<std::string>()) : "";
      };
      const std::string path = file.value("path", "");
      rows.push_back({code(std::filesystem::path(path).filename().string()), member("format"),
                      member("rows"), member("documents"), member("tokens"),
                      member("trained_tokens"), member("xxh3")});
    }
    const RecordedPart part = part_of_files(set);
    const std::string done = use.starts_with("eval") ? "\nEvaluated on" : "\nTrained on";
    // With a held-out part, listing whole files would suggest training on the evaluation data.
    if (part.held_out) {
      text += done + " " + part.words + ".\n";
      continue;
    }
    text += done + (part.words.empty() ? "" : ", " + part.words) + ":\n\n" +
            markdown_table({"file", "format", "rows", "documents", "tokens", "trained tokens",
                            "xxh3 of the file"},
                           rows);
  }
  return text;
}

// Strips the directories from a file's value in a run file.
std::string file_name_of(const std::string& value) {
  const size_t slash = value.rfind('/');
  return slash == std::string::npos ? value : "\"" + value.substr(slash + 1);
}

// Lists the keys that determine the result, without keys for locations or for the split over ranks.
std::string recipe(const RunRecord& run) {
  constexpr std::array<std::string_view, 10> kKeys = {
      "run.seed",   "adapter.", "train.",     "optimizer.",     "schedule.",
      "precision.", "data.",    "eval.split", "eval.sequences", "offload.state_format"};
  constexpr std::array<std::string_view, 4> kPlaces = {"data.train", "data.eval", "data.cache",
                                                       "adapter.path"};
  Rows rows;
  const std::map<std::string, std::string> values = config_values(run.config);
  const auto kind = values.find("adapter.kind");
  const bool adapter = kind != values.end() && kind->second != "\"none\"";
  for (const auto& [key, value] : values) {
    if (key.starts_with("adapter.") && !adapter) continue;
    const auto begins = [&key](std::string_view head) { return key.starts_with(head); };
    if (std::ranges::none_of(kKeys, begins) || std::ranges::count(kPlaces, key) > 0) continue;
    const bool file = key == "data.chat_template";
    rows.push_back({code(key), code(file ? file_name_of(value) : value)});
  }
  return markdown_table({"key", "value"}, rows);
}

// Returns the notes for the user of the model.
std::string use_of(const CardBase& base) {
  std::string text;
  for (const std::string& line : base.use) text += "- " + plain(line) + "\n";
  return text.empty() ? text : "## Use\n\n" + text + "\n";
}

namespace fs = std::filesystem;

CardBase base_of(const ModelSource& source, const RunConfig& config) {
  constexpr Bytes kMaxCardBytes = 4 * kMiB;
  CardBase base{.family = source.arch().family,
                .parameters = merged_spec(source.arch(), source.whole()).parameter_elements()};
  if (source.base().random()) return base;
  // A hub id resolves to a directory of the local cache whose name is not the id.
  std::error_code ignored;
  const std::string& path = source.directory().path();
  base.on_hub = !fs::exists(config.model.path, ignored);
  base.name = base.on_hub ? config.model.path : fs::canonical(path).filename().string();
  if (fs::exists(path + "/README.md", ignored)) {
    base.card = read_whole_file(path + "/README.md", kMaxCardBytes);
  }
  return base;
}

}  // namespace

std::string model_card(const RunRecord& run, const CardBase& base, Step step) {
  std::string text = "---\nlibrary_name: " + std::string(base.adapter ? "peft" : "transformers") +
                     "\npipeline_tag: text-generation\n";
  if (base.on_hub) text += "base_model: " + base.name + "\n";
  text += inherited(base.card) + "tags:\n- longshore\n" + (base.adapter ? "- lora\n" : "") +
          "---\n\n# " +
          plain(std::filesystem::path(run.directory).lexically_normal().filename().string()) +
          "\n\n";
  if (base.adapter) {
    text += std::string(base.dora ? "A DoRA" : "A LoRA") + " adapter, not a whole model. ";
  }
  text += base.name.empty() ? "Trained from random weights" : "Fine-tuned from " + plain(base.name);
  text += " with Longshore: a " + plain(base.family) + " model of " +
          format_count(base.parameters) + " parameters.";
  if (!base.card.empty()) text += " The model card of the base model is in BASE_README.md.";
  return text +
         "\n\nIntended use and limits are not stated: add them before you publish the model. Later "
         "exports keep a README.md that was edited.\n\n" +
         use_of(base) + "## Figures\n\n" + figures(run, step) + "\n## Data\n" + data_of(run) +
         "\n## Recipe\n\n" + recipe(run);
}

ExportTexts texts_of_checkpoint(const ModelSource& source, const RunConfig& config,
                                const std::string& checkpoint, Step step, bool adapter) {
  // A checkpoint's path is <run.dir>/checkpoints/<name>.
  std::error_code ignored;
  const fs::path directory =
      fs::absolute(checkpoint, ignored).lexically_normal().parent_path().parent_path();
  ExportTexts texts;
  if (!fs::exists(directory / "metrics.jsonl", ignored)) return texts;
  add_trained_text(config, source, directory.string(), texts);
  try {
    CardBase base = base_of(source, config);
    base.use = texts.lines;
    base.adapter = adapter;
    base.dora = source.has_adapter() && source.adapter()->settings().dora;
    texts.card = model_card(read_run_record(directory.string()), base, step);
  } catch (const Error& error) {
    // The export continues without a card if the card cannot be made.
    log_warning(std::string(error.what()) + "; the export has no model card");
  }
  return texts;
}

}  // namespace longshore
